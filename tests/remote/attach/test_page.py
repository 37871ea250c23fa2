"""`docs/attach.md` and `docs/models.md` agree with the code and with every release."""

from __future__ import annotations

import pytest

from remote.attach.block import append
from remote.model_families import FAMILIES
from tests.remote.attach.tables import (
    MODELS_PAGE,
    PAGE,
    families_table,
    refusals_table,
    refused_table,
    table_row,
    wheel_row,
)
from tests.remote.attach.wheels import VERSIONS, NoRegistry
from tests.remote.capture.cases import MODELS


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


def test_the_models_page_lists_every_refused_architecture() -> None:
    assert refused_table() in MODELS_PAGE.read_text()


def test_every_family_is_compared_with_transformers_in_a_test() -> None:
    assert {model.family for model in MODELS} == {family.name for family in FAMILIES}


@pytest.mark.wheels
def test_the_models_page_says_what_every_release_s_source_says() -> None:
    try:
        table = families_table()
    except NoRegistry as error:
        pytest.skip(str(error))
    assert table in MODELS_PAGE.read_text()
