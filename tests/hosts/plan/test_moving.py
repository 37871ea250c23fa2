"""Steps that bring all hosts to their end together: simulated hosts of any speed, with known and unknown speeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hosts.plan.moving import LEAD_SECONDS, Runner, lag, next_moves

TICK_SECONDS = 2.0


def _run(work: list[int], speeds: list[float], wrong: list[float]) -> tuple[float, list[float]]:
    """Seconds until hosts with so many tokens are done, moving what `next_moves` says; and tokens each has done."""
    left, done, now = [float(tokens) for tokens in work], [0.0] * len(work), 0.0
    while any(tokens > 0 for tokens in left):
        runners = [
            Runner(str(number), int(tokens), speeds[number] * wrong[number], takes=True, gives=True)
            for number, tokens in enumerate(left)
        ]
        for move in next_moves(runners):
            giver, taker = int(move.giver), int(move.taker)
            assert 0 < move.tokens <= left[giver]
            left[giver] -= move.tokens
            left[taker] += move.tokens
        for number, speed in enumerate(speeds):
            step = min(left[number], speed * TICK_SECONDS)
            left[number] -= step
            done[number] += step
        now += TICK_SECONDS
    return now, done


@given(st.lists(st.tuples(st.integers(0, 400_000), st.floats(50, 5_000), st.floats(0.8, 1.25)), min_size=2, max_size=8))
def test_hosts_of_any_speed_end_together(hosts: list[tuple[int, float, float]]) -> None:
    work = [tokens for tokens, _, _ in hosts]
    speeds = [speed for _, speed, _ in hosts]
    seconds, done = _run(work, speeds, [error for _, _, error in hosts])
    assert abs(sum(done) - sum(work)) < 1
    ideal = sum(work) / sum(speeds)
    assert seconds <= ideal * 1.05 + 8 * TICK_SECONDS


def test_one_host_ten_times_slower_is_relieved_in_small_steps() -> None:
    slow = Runner("slow", 1_000_000, 100.0, takes=True, gives=True)
    (move,) = next_moves([slow, Runner("fast", 0, 1000.0, takes=True, gives=True)])
    assert (move.giver, move.taker) == ("slow", "fast")
    assert move.tokens == 90_000


def test_no_move_goes_to_a_later_or_unwilling_host_or_exceeds_the_takers_disk() -> None:
    slow = Runner("slow", 1_000_000, 100.0, takes=True, gives=True)
    assert next_moves([slow, Runner("fast", int(1000 * LEAD_SECONDS) + 1, 1000.0, takes=True, gives=True)]) == []
    assert next_moves([slow, Runner("fast", 0, 1000.0, takes=False, gives=True)]) == []
    (move,) = next_moves([slow, Runner("fast", 0, 1000.0, takes=True, gives=True, room=500)])
    assert move.tokens == 500


def test_records_of_an_idle_host_move_to_a_working_host() -> None:
    (move,) = next_moves(
        [Runner("still", 5_000, 0.0, takes=False, gives=True), Runner("fast", 0, 100.0, takes=True, gives=False)]
    )
    assert (move.giver, move.tokens) == ("still", 3_500)


def test_the_lag_is_the_time_that_moving_records_can_save() -> None:
    runners = [Runner("a", 1000, 10.0, takes=True, gives=True), Runner("b", 0, 90.0, takes=True, gives=True)]
    assert lag(runners) == 90.0
    assert lag([]) == 0.0
