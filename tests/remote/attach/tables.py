"""The tables of `docs/attach.md` and `docs/models.md`, made by doing what they say.

`python -m tests.remote.attach.tables` rewrites them.

Run under the engine's Python. The wheels are downloaded once; each release's own parser is asked for its flags.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from remote.attach import block, patch
from remote.attach.interpreter import Interpreter
from remote.attach.loop import Models
from remote.attach.probe import find_installation
from remote.attach.refusals import RULES, Rule
from remote.attach.ways import choose
from remote.model_families import FAMILIES, REFUSED, Family
from tests.remote.attach.wheels import VERSIONS, unpack
from tests.remote.capture.cases import MODELS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "attach.md"
MODELS_PAGE = ROOT / "docs" / "models.md"


def refusals_table() -> str:
    """Configuration, what would go wrong, and the cure in every release."""
    rows = [(f"`{rule.name}`", _examples(rule), rule.sentence, _cures(rule)) for rule in RULES]
    return _table(("refusal", "for example", "why", "use instead"), rows)


def _examples(rule: Rule) -> str:
    flags = [f"`{' '.join(example)}`" for example in rule.examples if example]
    return ", ".join(flags) or ("its flag left out" if rule.examples else "an unknown `architectures`")


def _cures(rule: Rule) -> str:
    return "; where that is unknown: ".join(cure for _setting, cure in rule.cures)


def wheels_table() -> str:
    """Every release: attached, looked at, detached."""
    heads = ("SGLang", "loads plugins", "`auto` takes", "patched files", "lines added to each", "after detach")
    return _table(heads, [wheel_row(version) for version in VERSIONS])


def wheel_row(version: str) -> tuple[str, ...]:
    """Do it to one wheel and say what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        unpack(version, site)
        before = _contents(site)
        installation = find_installation(payload=ROOT, env={"PYTHONPATH": folder})
        patch.attach(installation, patch.targets(installation), dry_run=False)
        added = {_added(family.file(site / "sglang"), before) for family in FAMILIES}
        names = f"{len(FAMILIES)}, one a family"
        plugins = "yes" if installation.has_plugins else "no"
        way = choose("auto", installation).way
        patch.detach(patch.targets(installation), dry_run=False)
        after = "byte for byte the wheel's" if _contents(site) == before else "NOT what the wheel holds"
        return (version, plugins, way, names, ", ".join(str(lines) for lines in sorted(added)), after)


def _contents(site: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def _added(file: Path, before: dict[Path, bytes]) -> int:
    """Lines that were appended to a file which compiles and is otherwise as it was."""
    content = file.read_bytes()
    compile(content, str(file), "exec")
    parts = block.split(content)
    assert parts is not None
    assert parts.above == before[file]
    return content.count(b"\n") - before[file].count(b"\n")


def families_table() -> str:
    """Every family: where parity was seen, and its loop's shape in each release, to which the patch was applied."""
    read = {version: _shapes(version) for version in VERSIONS}
    rows = [family_row(family, {version: read[version][family.name] for version in VERSIONS}) for family in FAMILIES]
    return _table(("family", "architectures", "parity", *VERSIONS), rows)


def family_row(family: Family, shapes: Mapping[str, str]) -> tuple[str, ...]:
    """One family's row."""
    names = ", ".join(f"`{name}`" for name in family.served)
    return (family.name, names, parity_of(family), *(shapes[version] for version in VERSIONS))


def parity_of(family: Family) -> str:
    """Where the family's models were held to transformers."""
    places = {model.on_cpu for model in MODELS if model.family == family.name}
    said = {True: "fp32, CPU, 0.5.23", False: "bf16, H200, 0.5.17"}
    return "; ".join(said[place] for place in sorted(places, reverse=True))


def _shapes(version: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        unpack(version, Path(folder))
        return shapes_in(Path(folder) / "sglang")


def shapes_in(package: Path) -> dict[str, str]:
    """Of each family, how its blocks hand the stream on in this SGLang."""
    models = Models(package)
    found = {family.name: models.loop_of(family.architectures[0]) for family in FAMILIES}
    return {name: loop.shape if loop else "" for name, loop in found.items()}


def refused_table() -> str:
    """Architectures that are refused by name."""
    return _table(("architecture", "why"), [(f"`{name}`", why) for name, why in REFUSED.items()])


def flags_table() -> str:
    """What each release's parser is given on top of the operator's flags."""
    return _table(("SGLang", "flags that capture adds"), [flags_row(version) for version in VERSIONS])


def flags_row(version: str) -> tuple[str, str]:
    """Ask one release's own parser."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(version, Path(folder), whole=True)
        line = {"flags": ["--model-path=/models/any"], "capture": True}
        interpreter = Interpreter(ROOT, {"PYTHONPATH": folder, "SGLANG_USE_CPU_ENGINE": "1"})
        answer = interpreter.ask("tests.remote.attach.releases:parse_all", {"lines": [line], "tolerant": True})
        return flags_cells(version, answer["answers"][0]["added"])


def flags_cells(version: str, added: list[str]) -> tuple[str, str]:
    """One release's row."""
    return (version, " ".join(f"`{flag}`" for flag in added))


def table_row(cells: tuple[str, ...]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    rules = tuple("---" for _ in heads)
    return "".join(f"{table_row(row)}\n" for row in (heads, rules, *rows))


def rewritten(page: str, name: str, table: str) -> str:
    """Put a table between its marks."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.split(begin)
    return head + begin + "\n" + table + "\n" + end + rest.split(end, 1)[1]


def main() -> None:
    """Rewrite all tables of the page."""
    page = PAGE.read_text()
    for name, make in (("refusals", refusals_table), ("wheels", wheels_table), ("flags", flags_table)):
        page = rewritten(page, name, make())
    PAGE.write_text(page)
    page = MODELS_PAGE.read_text()
    for name, make in (("families", families_table), ("refused", refused_table)):
        page = rewritten(page, name, make())
    MODELS_PAGE.write_text(page)


if __name__ == "__main__":
    main()
