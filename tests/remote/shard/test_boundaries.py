"""The slots of a record, from the layers that were asked for and the model's depth."""

from __future__ import annotations

import pytest

from remote.shared.errors import UsageError
from remote.shared.shard.boundaries import boundaries_of


def test_the_last_slot_is_behind_all_blocks() -> None:
    assert boundaries_of([0, 3, 31], 61) == [0, 3, 31, 61]
    assert boundaries_of([], 6) == [6]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([3, 1], "rising"),
        ([3, 3], "rising"),
        ([-1], "rising"),
        ([6], "Boundary 6 .* the model on a has 6 blocks. Choose layers from 0 to 5"),
    ],
)
def test_layers_that_a_model_does_not_have_are_refused(layers: list[int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        boundaries_of(layers, 6, whose="the model on a")
