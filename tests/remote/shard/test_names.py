"""Names in a dump directory: capture's names are read back, and no other name counts as a dump."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from remote.shared.shard.names import CANARY, FAILED, WHOLE, request_of, stage_suffix, stages
from remote.shared.shard.request_id import RequestId
from tests.hostile import ESCAPES, examples

ids = st.builds(
    RequestId,
    st.text(string.ascii_letters + string.digits, min_size=1, max_size=32),
    st.one_of(st.none(), st.integers(0, 10**18)),
    st.integers(0, 10**9 - 1),
    st.integers(1, 10**9 - 1),
)
odd = st.one_of(st.sampled_from(ESCAPES), st.text(max_size=20))
names = st.builds(
    lambda start, middle, end: f"{start}{middle}{end}",
    st.one_of(ids.map(str), odd, st.just("roost.n.1.0.8")),
    st.one_of(odd, st.sampled_from(["", ".stage0of2", ".stage1of2", f".stage0of{'9' * 5000}", ".stage-1of2", CANARY])),
    st.sampled_from(["", WHOLE, FAILED, ".tmp", WHOLE + WHOLE]),
)


@examples(100)
@given(ids, st.integers(1, 64), st.sampled_from([WHOLE, FAILED]), st.sampled_from(["", CANARY]))
def test_the_names_that_capture_gives_lead_back_to_their_request(
    rid: RequestId, count: int, ending: str, canary: str
) -> None:
    assert RequestId.parse(str(rid)) == rid
    written = [f"{rid}{canary}{stage_suffix(stage, count)}{ending}" for stage in range(count)]
    assert {request_of(name) for name in written} == {str(rid)}
    if count > 1 and ending == WHOLE and not canary:
        assert stages(str(rid), {*written, "another"}) == written
        assert stages(str(rid), set(written[1:])) == []


@examples(200)
@given(names)
def test_any_file_name_belongs_to_one_request_or_to_none(name: str) -> None:
    found = RequestId.parse(request_of(name))
    if found is not None:
        assert name.startswith(str(found))
        assert "/" not in name[len(str(found)) :] or not name.endswith((WHOLE, FAILED)) or found.rows > 0
    assert RequestId.parse(name) is None or str(RequestId.parse(name)) == name


@examples(100)
@given(ids, st.sets(names, max_size=6))
def test_strange_names_beside_a_record_s_make_no_parts(rid: RequestId, strange: set[str]) -> None:
    around = {name for name in strange if not name.startswith(f"{rid}.")}
    assert stages(str(rid), around) == []
    parts = [f"{rid}{stage_suffix(stage, 2)}{WHOLE}" for stage in range(2)]
    assert stages(str(rid), {*around, *parts}) == parts
