"""A server's key: new at each start, readable only by its owner, masked in the log, and required."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.context import Context
from remote.servers.lifecycle import key
from remote.servers.lifecycle.command import _refuse_owned_flags, _split_config
from remote.servers.lifecycle.stop import stop
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.server import ServerSpec, ServerState, StopRequest
from remote.shared.paths import ServerPaths
from tests.remote.servers.states import server_of

Start = Callable[..., ServerState]


@pytest.mark.processes
def test_the_key_is_masked_in_the_log_and_gone_with_the_server(start: Start, until: Start, context: Context) -> None:
    start()
    ready = until("ready")
    paths = context.workdir.server("main")
    bare = key.bare(paths)
    assert [path.stat().st_mode & 0o777 for path in (paths.config, paths.authorization)] == [0o600, 0o600]
    assert bare not in Path(f"/proc/{server_of(ready).pid}/cmdline").read_text()
    stop(StopRequest(grace_seconds=5.0), context)
    assert f"api_key='{'*' * len(bare)}', tp_size=1)" in Path(ready.log).read_text()
    with pytest.raises(HostError, match=r"key of server 'main' cannot be read.*authorization"):
        key.headers(paths)


@pytest.mark.processes
def test_a_server_that_answers_without_its_key_is_never_ready(start: Start, until: Start) -> None:
    start("--open")
    ended = until("failed", "ready")
    assert ended.status == "failed"
    assert "answers requests that carry no key" in ended.cause


def test_every_start_has_another_key_and_keeps_what_the_operator_s_file_holds(tmp_path: Path) -> None:
    paths = ServerPaths(tmp_path / "main")
    first = key.issue(paths, {"context-length": 9}, closes_admin=False)
    second = key.issue(paths, {"context-length": 9}, closes_admin=True)
    assert (len(first), len(second), len({*first, *second})) == (1, 2, 3)
    content = json.loads(paths.config.read_bytes())
    assert content == {"context-length": 9, "api-key": second[0], "admin-api-key": second[1]}
    assert (
        key.headers(paths) == {"Authorization": f"Bearer {key.bare(paths)}"} == {"Authorization": f"Bearer {second[0]}"}
    )


def test_an_operator_s_own_key_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    for flag in ("--api-key=x", "--admin_api_key"):
        with pytest.raises(UsageError, match=r"every start has a key of its own|which Roost sets itself"):
            _refuse_owned_flags(ServerSpec(model="m", flags=[flag]))
    config = tmp_path / "mine.yaml"
    config.write_text("api_key: x\n")
    with pytest.raises(UsageError, match=r"mine\.yaml holds api_key"):
        _split_config(["--tp-size=1", "--config", str(config)])
    config.write_text("context-length: 9\n")
    assert _split_config(["--a", "--config", str(config), "--b"]) == ({"context-length": 9}, ["--a", "--b"])


@given(pieces=st.lists(st.one_of(st.binary(max_size=40), st.just(b"s3cret-one"), st.just(b"0ther"))), data=st.data())
def test_a_mask_covers_every_secret_however_the_log_grows(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], data: st.DataObject
) -> None:
    log = tmp_path_factory.mktemp("log") / "log"
    whole = b"".join(pieces)
    mask = key.Mask(log, ["s3cret-one", "0ther"])
    mask.apply()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with log.open("ab") as stream:
            stream.write(whole[start:end])
        mask.apply()
    assert log.read_bytes() == whole.replace(b"s3cret-one", b"*" * 10).replace(b"0ther", b"*" * 5)
