"""`unpack` never writes compressed shards of one run among another run's shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.codec.container import pack_file
from remote.shared.errors import OtherRunError, UsageError
from remote.shared.messages.codec import UnpackRequest, UnpackResult
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.transfer import DestinationManifest
from remote.shared.paths import RunPaths, Workdir
from remote.storage.unpack import unpack
from remote.work.ledger import Ledger
from tests.identities import run_identity

MINE = run_identity()
OTHER = run_identity(name="second", nonce="f" * 16, boundaries=(1, 2, 6))
REPLANNED = run_identity(nonce="0" * 16)


def content_of(identity: RunIdentity, rows: int = 3) -> bytes:
    """A record of this run, as its plain shard."""
    entries = {
        "__metadata__": identity.marks,
        "hidden_states": {"dtype": "BF16", "shape": [rows, 3, 8], "data_offsets": [0, rows * 48]},
    }
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(range(rows * 48))


def put(folder: Path, index: int, identity: RunIdentity, *, packed: bool = True) -> Path:
    """Put a record of this run into a folder; returns its plain shard's path."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / f"hs_{index}.safetensors"
    plain.write_bytes(content_of(identity))
    if packed:
        pack_file(plain, plain.with_name(f"{plain.name}.rz"))
        plain.unlink()
    return plain


def destination(root: Path, identity: RunIdentity) -> Path:
    """What `inv pull` leaves of this run, without records; returns the folder that its records lie in."""
    manifest = DestinationManifest(
        identity=identity,
        identity_digest=identity.digest,
        records=9,
        delivered=0,
        delivered_tokens=0,
        delivered_bytes=0,
        hosts={},
        written_at=0.0,
    )
    (root / "roost").mkdir(parents=True)
    (root / "roost" / "manifest.json").write_text(manifest.model_dump_json())
    (root / "hidden_states").mkdir()
    return root / "hidden_states"


def on_host(workdir: Path, identity: RunIdentity) -> Path:
    """A run's folder of shards on its host."""
    run = RunPaths(workdir / "runs" / identity.name)
    run.shards.mkdir(parents=True)
    with Ledger(run.ledger) as ledger:
        ledger.note({"identity": identity.model_dump_json()})
    return run.shards


def unpacked(*paths: Path, out: Path | None = None, remove: bool = True) -> UnpackResult:
    request = UnpackRequest(paths=[*map(str, paths)], out=str(out or ""), remove=remove, processes=1)
    return unpack(request, Context(Workdir(paths[0]), Report()))


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", [destination, on_host])
@pytest.mark.parametrize("foreign", [OTHER, REPLANNED])
def test_a_container_of_another_run_keeps_its_whole_folder_packed(
    tmp_path: Path, place: Callable[[Path, RunIdentity], Path], foreign: RunIdentity
) -> None:
    folder = place(tmp_path / "place", MINE)
    put(folder, 0, MINE)
    put(folder, 1, foreign)
    before = files(tmp_path)
    with pytest.raises(OtherRunError, match=f"(?s){foreign.digest}.*{MINE.digest}"):
        unpacked(folder)
    assert files(tmp_path) == before


def test_containers_do_not_go_into_another_runs_destination(tmp_path: Path) -> None:
    packed, out = destination(tmp_path / "from", MINE), destination(tmp_path / "to", OTHER)
    put(packed, 0, MINE)
    before = files(tmp_path)
    with pytest.raises(OtherRunError, match=f"(?s){MINE.digest}.*{OTHER.digest}"):
        unpacked(packed, out=out)
    assert files(tmp_path) == before


def test_two_runs_are_not_unpacked_to_one_folder_and_the_folder_is_not_made(tmp_path: Path) -> None:
    one, other = destination(tmp_path / "one", MINE), destination(tmp_path / "other", OTHER)
    put(one, 0, MINE)
    put(other, 1, OTHER)
    with pytest.raises(OtherRunError, match=f"{OTHER.digest}.*is of .*{MINE.digest}"):
        unpacked(one, other, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plain_shard_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    put(tmp_path / "copied", 0, MINE)
    plain = put(tmp_path / "out", 0, OTHER, packed=False)
    with pytest.raises(OtherRunError, match=OTHER.digest):
        unpacked(tmp_path / "copied", out=tmp_path / "out")
    assert plain.read_bytes() == content_of(OTHER)


def test_a_destination_without_a_manifest_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "hidden_states", 0, MINE)
    with pytest.raises(UsageError, match="does not say of which run"):
        unpacked(tmp_path)


@pytest.mark.parametrize("place", [destination, on_host, lambda root, _: root])
def test_a_run_is_unpacked_in_place_and_a_damaged_container_affects_no_other(
    tmp_path: Path, place: Callable[[Path, RunIdentity], Path]
) -> None:
    folder = place(tmp_path / "place", MINE)
    plain = put(folder, 0, MINE)
    damaged = put(folder, 1, MINE).with_name("hs_1.safetensors.rz")
    damaged.write_bytes(damaged.read_bytes()[:40])
    result = unpacked(folder)
    assert (result.unpacked, list(result.failed)) == (1, [str(damaged)])
    assert plain.read_bytes() == content_of(MINE)
    assert unpacked(folder, out=tmp_path / "out").failed
