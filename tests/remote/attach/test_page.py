"""`docs/attach.md` says what is so."""

from __future__ import annotations

import pytest

from remote.attach.block import append
from tests.remote.attach.tables import PAGE, refusals_table, table_row, wheel_row
from tests.remote.attach.wheels import VERSIONS, NoRegistry


def test_the_page_lists_every_refusal_as_it_is() -> None:
    assert refusals_table() in PAGE.read_text()


def test_the_block_is_as_small_as_the_page_says() -> None:
    assert append(b"").decode().count("\n") <= 20


@pytest.mark.wheels
@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_says_what_a_release_did(version: str) -> None:
    try:
        row = wheel_row(version)
    except NoRegistry as error:
        pytest.skip(str(error))
    assert table_row(row) in PAGE.read_text()
