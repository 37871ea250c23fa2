"""Checks that pulled answers are those of a greedy model, with transformers and sqlite3 alone and no code of Roost's.

    .engine/bin/python tests/faults/answer_checker.py PROMPTS.jsonl DEST MODEL

Each line of PROMPTS has `messages`. The run was planned with temperature 0, one answer for each prompt and all turns,
for a float32 model whose template keeps every turn unchanged. Prints a JSON summary; exits with 1 at the first fault.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import struct
import sys
from pathlib import Path
from typing import Any

CLOSE = 1e-4
"""If two logits differ by less than this, another batch or kernel may choose either token."""


class Fault(Exception):
    """The first fault that was found."""


def tensors(path: Path) -> dict[str, list[int]]:
    """Return the integer tensors of a safetensors file, read without a library."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    kinds = {"I64": "q", "I32": "i", "U8": "B"}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in kinds:
            start, stop = entry["data_offsets"]
            raw = content[8 + length + start : 8 + length + stop]
            size = struct.calcsize(kinds[entry["dtype"]])
            found[name] = list(struct.unpack(f"<{len(raw) // size}{kinds[entry['dtype']]}", raw))
    return found


def delivered(dest: Path) -> list[int]:
    """Return the indices in the destination's ledger."""
    with sqlite3.connect(f"file:{dest / 'roost' / 'ledger.sqlite'}?mode=ro", uri=True) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            if "idx" in columns and "xxh3" in columns:
                return sorted(index for (index,) in db.execute(f"SELECT idx FROM {table}"))
    raise Fault("the destination's ledger has no table of records")


def runs(mask: list[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges in which the mask is 1."""
    edges = [place for place in range(len(mask) + 1) if (mask[place - 1] if place else 0) != ([*mask, 0])[place]]
    return list(zip(edges[::2], edges[1::2], strict=True))


class Judge:
    """The model and its tokenizer, which judge the answers."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        self.near = 0

    def check(self, messages: list[dict[str, Any]], rows: list[tuple[list[int], list[int]]]) -> int:
        """Check one conversation, whose training records have ids and mask; return the number of sampled tokens."""
        asked = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        answered = 0
        for ids, mask in rows:
            spans = runs(mask)
            if not answered and ids[: spans[0][0]] != self._rendered(messages[: asked[0]]):
                raise Fault("its first prompt is not the one that transformers renders")
            self._check_questions(messages, asked[answered:], ids, spans)
            self._check_greedy(ids, spans)
            answered += len(spans)
        if answered != len(asked):
            raise Fault(f"it has {answered} answers, and the data asks for {len(asked)}")
        return sum(sum(mask) for _, mask in rows)

    def _rendered(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _check_questions(
        self, messages: list[dict[str, Any]], places: list[int], ids: list[int], spans: list[tuple[int, int]]
    ) -> None:
        """What stands between two answers is the end of the first, if it was not sampled, and the data's question."""
        (end,) = self.tokenizer.encode("<|end|>", add_special_tokens=False)
        for number, (before, after) in enumerate(itertools.pairwise(spans)):
            questions = messages[places[number] + 1 : places[number + 1]]
            wanted = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in questions) + "<|assistant|>"
            between = list(self.tokenizer.encode(wanted, add_special_tokens=False))
            eos = ids[before[1] - 1] == end
            if ids[before[1] : after[0]] != ([] if eos else [end]) + between:
                raise Fault(f"what stands after answer {number} is not the next question")

    def _check_greedy(self, ids: list[int], spans: list[tuple[int, int]]) -> None:
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([ids])).logits[0]
        for start, stop in spans:
            for place in range(start, stop):
                row = logits[place - 1]
                behind = float(row.max() - row[ids[place]])
                if behind > CLOSE:
                    raise Fault(f"token {place} is {ids[place]}, whose logit is {behind:.2e} behind the best one")
                self.near += behind > 0


def main(prompts: Path, dest: Path, model: Path) -> int:
    """Judge every record; returns the exit code."""
    asked = [json.loads(line)["messages"] for line in prompts.read_text().splitlines()]
    judge, sampled = Judge(model), 0
    try:
        indices = delivered(dest)
        if indices != list(range(len(asked))):
            raise Fault(f"{len(asked)} prompts were asked, and the ledger has {len(indices)} records")
        for index, messages in enumerate(asked):
            try:
                found = tensors(dest / "answers" / f"hs_{index}.safetensors")
                edges = list(zip(found["offset"], found["offset"][1:], strict=False))
                rows = [(found["input_ids"][low:high], found["loss_mask"][low:high]) for low, high in edges]
                sampled += judge.check(messages, rows)
            except (Fault, KeyError, FileNotFoundError) as fault:
                raise Fault(f"record {index}: {fault}") from fault
    except Fault as fault:
        print(json.dumps({"fault": str(fault)}))
        return 1
    print(json.dumps({"records": len(asked), "sampled": sampled, "within 1e-4": judge.near}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
