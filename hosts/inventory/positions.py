"""Where in a YAML file each key stands, for messages that name the line."""

from __future__ import annotations

from typing import Any

import yaml

from hosts.errors import InventoryError

Path = tuple[str | int, ...]
MOST_NODES = 200_000


def read(text: str, name: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """Parse `text` and return its mapping and the line (from 1) of every key path; `name` is for messages.

    Raises InventoryError for broken YAML, a key given twice, or a file that is no mapping.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_growth(root, name)
        data = yaml.safe_load(text)
    except InventoryError:
        raise
    except (ValueError, RecursionError, TypeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InventoryError(f"{name}: {reason}.", remedy="Mend the YAML there.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise InventoryError(f"{name}{where}: {problem}.", remedy="Mend the YAML there.") from error
    if not isinstance(data, dict):
        raise InventoryError(f"{name} holds no mapping.", remedy="Start from the checked-in inventory.yaml.")
    lines: dict[Path, int] = {}
    if root is not None:
        _collect(root, (), lines, name)
    return data, lines


def _refuse_growth(root: yaml.Node | None, name: str) -> None:
    """Refuse aliases that stand for more than could have been written, and those that hold themselves."""
    left, seen = [root], 0
    while left:
        node = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InventoryError(f"{name}: its anchors and aliases stand for over {MOST_NODES:,} values.")
        if isinstance(node, yaml.MappingNode):
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def _collect(node: yaml.Node, path: Path, lines: dict[Path, int], name: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = (*path, key_node.value)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise InventoryError(
                    f"{name} line {line}: {key_node.value!r} is given twice (first in line {lines[key]})."
                )
            lines[key] = line
            _collect(value_node, key, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[(*path, number)] = item.start_mark.line + 1
            _collect(item, (*path, number), lines, name)
