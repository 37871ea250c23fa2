"""What a starting server is doing, from SGLang's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.servers.probing.progress import LogProgress, Step, parse


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "Multi-thread loading shards:  42% Completed | 27/64 [00:10<00:15,  2.50it/s]",
            Step("loading weights, 40 %", 27, 64, "files"),
        ),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 32/64 [01:00<01:00,  1.88s/it]",
            Step("loading weights, 50 %", 32, 64, "files"),
        ),
        (
            "[2026-03-01 10:00:00 TP0] Load weight end. elapsed=75 s, type=X, avail mem=60.1 GB, mem usage=71.66 GB.",
            Step("weights loaded (71.66 GB)"),
        ),
        (
            "[2026-03-01 10:00:00 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 812345, KV size: 52.1 GB",
            Step("KV cache allocated (812345 tokens)"),
        ),
        ("[2026-03-01 10:00:00] some other line", None),
    ],
)
def test_lines_become_steps(line: str, step: Step | None) -> None:
    assert parse(line) == step


def test_each_step_is_told_once_and_a_redrawn_bar_as_it_grows(tmp_path: Path) -> None:
    log, progress = tmp_path / "log", LogProgress()
    assert progress.poll(log) == []
    with log.open("a") as stream:
        stream.write("loading shards:   0% Completed | 0/2 [00:00<?]\rloading shards:  50% Completed | 1/2 [00:01]\r")
        stream.flush()
        assert progress.poll(log) == [
            Step("loading weights, 0 %", 0, 2, "files"),
            Step("loading weights, 50 %", 1, 2, "files"),
        ]
        assert progress.poll(log) == []
        stream.write("loading shards: 100% Compl")
        stream.flush()
        assert progress.poll(log) == []
        stream.write("eted | 2/2 [00:02]\n")
        stream.flush()
        assert progress.poll(log) == [Step("loading weights, 100 %", 2, 2, "files")]


def test_a_restart_is_followed_into_its_own_log(tmp_path: Path) -> None:
    progress = LogProgress()
    for number in (1, 2):
        log = tmp_path / f"main_v{number}.log"
        log.write_text(f"Load weight begin. avail mem={number}.00 GB\n")
        assert progress.poll(log) == [Step(f"loading weights ({number}.00 GB free)")]
