"""Sample text: multi-turn conversations made from the docstrings of Python's standard library.

Laptop's side, called by the demo and by tests; a person types `python -m hosts.practice.corpus OUT`. Reads the
library's source without importing it. The same version of Python gives the same bytes.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remote.shared.files import write_whole

Message = dict[str, str]
Conversation = list[Message]

# How many conversations of which length (bytes of content, which are tokens of the tiny models): 300 conversations,
# about 80,000 tokens, skewed as chat data is. The upper end leaves room for markers in a context of 4,096.
SHAPE = ((30, 100, 70), (100, 260, 150), (260, 900, 66), (900, 3900, 14))
SYSTEM = "You explain Python's standard library, briefly and exactly."
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "encodings"}


@dataclass(frozen=True)
class Documented:
    """A public function or class of the library with its docstring."""

    name: str
    """Its dotted name: `json.JSONEncoder.encode`."""
    kind: str
    text: str
    signature: str
    module_text: str


def write_corpus(out: Path) -> int:
    """Write the conversations as JSONL, one `{"messages": [...]}` on each line; return their number."""
    lines = [json.dumps({"messages": one}, ensure_ascii=False) for one in conversations()]
    write_whole(out, ("\n".join(lines) + "\n").encode())
    return len(lines)


def conversations() -> list[Conversation]:
    """Return the conversations in an order that mixes lengths and modules, always the same."""
    room = [count for _, _, count in SHAPE]
    chosen: list[Conversation] = []
    for item in sorted(_library(), key=lambda item: _digest(item.name)):
        conversation = _conversation(item)
        length = sum(len(message["content"].encode()) for message in conversation)
        for number, (low, high, _) in enumerate(SHAPE):
            if low <= length < high and room[number] > 0:
                room[number] -= 1
                chosen.append(conversation)
    return chosen


def _conversation(item: Documented) -> Conversation:
    """Return a conversation of one to three questions with answers; the digest of the item's name decides how many."""
    number = int(_digest(item.name)[:8], 16)
    turns = [
        (f"What does the {item.kind} `{item.name}` do?", item.text),
        ("How is it called?", item.signature),
        ("And what is its module for?", item.module_text),
    ]
    asked = turns[: 1 + number % 3] if item.module_text else turns[: 1 + number % 2]
    opening = [{"role": "system", "content": SYSTEM}] if number % 5 == 0 else []
    return opening + [
        message
        for question, answer in asked
        for message in ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    ]


def _library() -> Iterator[Documented]:
    """Yield every public, documented function and class of the standard library's Python sources."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED.isdisjoint(parts) and not any(part.startswith("_") for part in parts if part != "__init__"):
            yield from _documented(path, ".".join(part for part in parts if part != "__init__"))


def _documented(path: Path, module: str) -> Iterator[Documented]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    module_text = _first_paragraph(ast.get_docstring(tree) or "")
    for name, node in _public(tree, module):
        text = ast.get_docstring(node)
        if text:
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield Documented(name, kind, text, _signature(name, node), module_text)


def _public(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            yield name, node
            if isinstance(node, ast.ClassDef):
                yield from _public(node, name)


def _signature(name: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"`{name}({ast.unparse(node.args)})`"
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"`class {name}({bases})`" if bases else f"`class {name}`"


def _first_paragraph(text: str) -> str:
    return inspect.cleandoc(text).split("\n\n", 1)[0]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


if __name__ == "__main__":
    print(f"{write_corpus(Path(sys.argv[1]))} conversations in {sys.argv[1]}")
