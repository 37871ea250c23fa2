"""Manifests that anybody may have written: believed only if they are whole and name their own digest."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.errors import RoostError, UsageError
from remote.shared.messages.transfer import DestinationManifest
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.manifest import manifest_of, opened_for, refuse_other
from tests.hostile import ESCAPES, Maker, examples, json_values, objects_like, seeds
from tests.shards import IDENTITY

contents = st.one_of(
    st.binary(max_size=60),
    st.just(b"[" * 100_000),
    json_values().map(lambda value: json.dumps(value).encode()),
    objects_like(DestinationManifest).map(lambda value: json.dumps(value).encode()),
)


def place(folder: Path, destination: bytes | None, dataset: bytes | None = None) -> Destination:
    """A folder with these two manifests."""
    (folder / "roost").mkdir()
    if destination is not None:
        (folder / "roost" / "manifest.json").write_bytes(destination)
    if dataset is not None:
        (folder / "manifest.json").write_bytes(dataset)
    return Destination(folder)


def true_manifest(tmp_path: Path) -> dict[str, Any]:
    with opened_for(Destination(tmp_path), IDENTITY, 20):
        pass
    found: dict[str, Any] = json.loads((tmp_path / "roost" / "manifest.json").read_bytes())
    return found


@examples(120)
@given(contents)
def test_a_destination_s_manifest_of_any_content_is_its_own_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    try:
        found = manifest_of(place(tmp_path_factory.mktemp("place"), content))
    except UsageError:
        return
    assert found is not None
    assert found.identity_digest == found.identity.digest


@examples(120)
@given(seeds)
def test_no_change_to_an_identity_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    manifest = true_manifest(tmp_path_factory.mktemp("true"))
    maker = Maker(seed)
    key = maker.random.choice(sorted(manifest["identity"]))
    before = manifest["identity"][key]
    manifest["identity"][key] = maker.random.choice([*ESCAPES, 0, -1, 1 << 40, None, [], {}, [1, 2], [before, before]])
    changed = place(tmp_path_factory.mktemp("changed"), json.dumps(manifest).encode())
    if manifest["identity"][key] == before:
        return
    with pytest.raises(UsageError):
        refuse_other(changed, IDENTITY)


@examples(80)
@given(contents)
def test_a_dataset_s_manifest_of_any_content_is_this_run_s_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    destination = place(tmp_path_factory.mktemp("place"), None, content)
    before = sorted(path.name for path in destination.root.rglob("*"))
    with contextlib.suppress(RoostError):
        refuse_other(destination, IDENTITY)
        assert json.loads(content)["digest"] == IDENTITY.dataset
    assert sorted(path.name for path in destination.root.rglob("*")) == before
