"""The inventory as YAML 1.2: read with the line of every key, for error messages, and written in order. Pure.

The same library reads and writes (also in `hosts/tune/fragment.py`), so that a value means the same both ways: YAML 1.1
reads an unquoted `off` as false and `12:30:00` as a number.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hosts.errors import InventoryError

Path = tuple[str | int, ...]
MOST_NODES = 200_000
WIDTH = 120


@dataclass(frozen=True)
class Written:
    """A value that YAML reads differently from its text: `022` becomes 22, `0x10` becomes 16, `2026-01-31` a date.

    Settings that take text get the text; settings that take a number refuse the value.
    """

    text: str

    def __repr__(self) -> str:
        return self.text


class WrittenFloat(float):
    """A number whose text Python would write differently (`1.20`, `0.00001`); settings that take text get the text."""

    text: str


class _AsWritten(SafeConstructor):
    """Reads YAML's plain values, and keeps the text of values that would be written differently."""

    def written(self, node: ScalarNode) -> Any:
        value = SafeConstructor.yaml_constructors[node.tag](self, node)
        if str(value) == node.value or node.value in ("true", "false"):
            return value if isinstance(value, bool | int | float) else Written(node.value)
        try:
            number = WrittenFloat(node.value) if isinstance(value, float) else None
        except ValueError:
            number = None
        if number is None or "_" in node.value:
            return Written(node.value)
        number.text = node.value
        return number


for _kind in ("int", "float", "bool", "timestamp"):
    _AsWritten.add_constructor(f"tag:yaml.org,2002:{_kind}", _AsWritten.written)


def _text_keys(value: Any) -> Any:
    """Return `value` with its keys as text."""
    if isinstance(value, dict):
        return {
            key.text if isinstance(key, Written | WrittenFloat) else key: _text_keys(one) for key, one in value.items()
        }
    return [_text_keys(one) for one in value] if isinstance(value, list) else value


def read(text: str, name: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """Parse `text` and return its mapping and the line (from 1) of every key path; messages use `name`.

    Raises InventoryError for broken YAML, a repeated key, or a file that is not a mapping.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _AsWritten
    lines: dict[Path, int] = {}
    try:
        root = yaml.compose(text)
        _refuse_growth(root, name)
        if root is not None:
            _collect(root, (), lines, name)
        data = None if root is None else _text_keys(yaml.constructor.construct_document(root))
    except InventoryError:
        raise
    except (ValueError, RecursionError, TypeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InventoryError(f"{name}: {reason}.", remedy="Correct the YAML there.") from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise InventoryError(f"{name}{where}: {problem}.", remedy="Correct the YAML there.") from error
    if not isinstance(data, dict):
        raise InventoryError(f"{name} is not a mapping.", remedy="Start from the checked-in inventory.yaml.")
    return data, lines


def text_of(document: dict[str, Any]) -> str:
    """Return `document` as YAML, with its keys in their order."""
    stream = io.StringIO()
    writer().dump(document, stream)
    return stream.getvalue()


def writer(sequence: int = 4, offset: int = 2) -> YAML:
    """Return a YAML reader and writer that keeps comments, order and quotes; lists are indented as given."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    yaml.indent(mapping=2, sequence=sequence, offset=offset)
    return yaml


def _refuse_growth(root: Node | None, name: str) -> None:
    """Raise InventoryError for aliases that expand to too many values or contain themselves."""
    left, seen = [root], 0
    while left:
        node = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InventoryError(f"{name}: its anchors and aliases stand for over {MOST_NODES:,} values.")
        if isinstance(node, MappingNode):
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, SequenceNode):
            left += node.value


def _collect(node: Node, path: Path, lines: dict[Path, int], name: str) -> None:
    if isinstance(node, MappingNode):
        for key_node, value_node in node.value:
            if not isinstance(key_node.value, str):
                raise InventoryError(f"{name} line {key_node.start_mark.line + 1}: a key must be one word.")
            key = (*path, key_node.value)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise InventoryError(
                    f"{name} line {line}: {key_node.value!r} is given twice (first in line {lines[key]})."
                )
            lines[key] = line
            _collect(value_node, key, lines, name)
    elif isinstance(node, SequenceNode):
        for number, item in enumerate(node.value):
            lines[(*path, number)] = item.start_mark.line + 1
            _collect(item, (*path, number), lines, name)
