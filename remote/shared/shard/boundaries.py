"""The slots of a record as boundaries: boundary k is the residual stream after k blocks. Standard library only.

A record has the requested auxiliary layers in rising order, followed by the boundary after all blocks (the model's
depth). This list is built here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from remote.shared.errors import UsageError

FORM = "boundaries in rising order, each once"


def are_rising(boundaries: Sequence[int]) -> bool:
    """Return whether these are non-negative numbers in strictly rising order."""
    return all(boundary >= 0 for boundary in boundaries) and sorted(set(boundaries)) == list(boundaries)


def boundaries_of(layers: Sequence[int], depth: int, *, whose: str = "the model") -> list[int]:
    """Return the slots of a record with auxiliary `layers` of a model with `depth` blocks.

    Raises UsageError if the layers are not in rising order or reach the last boundary; `whose` names the model in that
    error.
    """
    if not are_rising(layers):
        raise UsageError(f"The layers {list(layers)} are not {FORM}.")
    if layers and layers[-1] >= depth:
        raise UsageError(
            f"Boundary {layers[-1]} cannot be an auxiliary layer: {whose} has {depth} blocks.",
            remedy=f"Choose layers from 0 to {depth - 1}; boundary {depth} is always the last slot.",
        )
    return [*layers, depth]
