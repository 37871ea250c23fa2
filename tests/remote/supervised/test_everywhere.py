"""Nothing in Roost starts a thread, a task or a pool but by the supervised primitive."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRIMITIVE = ROOT / "remote" / "shared" / "supervised"
STARTERS = {
    *("Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "TaskGroup"),
    *("create_task", "ensure_future", "gather", "to_thread"),
}
OWN = {"Thread"}
"""Also the name of the primitive's own: allowed where it is imported from there."""


ALONE = {"remote/engines/ray/actor.py": ["threading.Thread"]}
"""What runs without Roost's packages: Ray sends the actor's module alone to a node. The thread writes its end, whatever
that is, into the run's folder."""


def starters(tree: ast.Module) -> Iterator[str]:
    own = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remote.shared.supervised")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in STARTERS - own:
            yield f"line {node.lineno}: {called.id}"
        elif isinstance(called, ast.Attribute) and called.attr in STARTERS and _is_of_a_library(called.value):
            yield f"line {node.lineno}: {ast.unparse(called)}"
        elif isinstance(called, ast.Attribute) and called.attr == "run_in_executor" and _is_none(node.args[:1]):
            yield f"line {node.lineno}: {ast.unparse(called)}(None)"


def _is_of_a_library(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"threading", "asyncio", "futures", "concurrent", "loop"}


def _is_none(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value is None


def test_threads_tasks_and_pools_are_started_only_by_the_primitive() -> None:
    sources = [path for room in ("hosts", "remote") for path in (ROOT / room).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if not path.is_relative_to(PRIMITIVE) and (lines := list(starters(ast.parse(path.read_text()))))
    }
    assert {path: [line.partition(": ")[2] for line in lines] for path, lines in found.items()} == ALONE


def test_the_search_itself_finds_each_kind() -> None:
    seen = ast.parse(
        "threading.Thread(target=f)\nThreadPoolExecutor(2)\nasyncio.create_task(f())\nawait_(asyncio.gather(f()))\n"
        "loop.run_in_executor(None, f)\nasyncio.to_thread(f)\ntorch.log_softmax(x).gather(1, y)"
    )
    assert len(list(starters(seen))) == 6
