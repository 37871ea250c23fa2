"""A request id tells if a request is Roost's, and how many rows complete it."""

import pytest

from remote.shared.shard.request_id import RequestId


@pytest.mark.parametrize(
    "request_id",
    [RequestId("a1B2", 0, 0, 1), RequestId("x" * 32, 87_000_000, 3, 131_072), RequestId("n", None, 0, 64)],
)
def test_an_id_survives_its_own_text(request_id: RequestId) -> None:
    assert RequestId.parse(str(request_id)) == request_id


@pytest.mark.parametrize(
    "rid",
    [
        None,
        7,
        "",
        "HEALTH_CHECK_1764432000.1",
        "0f3f9f0f8f7d4d2ab8b1f2c0a3c1d2e3",
        "roost.n.1.0",
        "roost.n.1.0.5.6",
        "roost.n.-1.0.5",
        "roost.n.01.0.5",
        "roost.n.1.0.0",
        "roost..1.0.5",
        "roost.n/../x.1.0.5",
        "roost.n.1.0.5\n",
        " roost.n.1.0.5",
    ],
)
def test_any_other_text_is_not_an_id(rid: object) -> None:
    assert RequestId.parse(rid) is None


@pytest.mark.parametrize("parts", [("", 1, 0, 5), ("a.b", 1, 0, 5), ("n", -1, 0, 5), ("n", 1, -1, 5), ("n", 1, 0, 0)])
def test_parts_that_no_id_can_carry_are_refused(parts: tuple[str, int, int, int]) -> None:
    with pytest.raises(ValueError, match="request id"):
        RequestId(*parts)


def test_only_the_index_canary_makes_a_canary() -> None:
    assert RequestId("n", None, 0, 5).is_canary
    assert not RequestId("n", 0, 0, 5).is_canary
