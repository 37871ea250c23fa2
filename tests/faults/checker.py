"""Checks independently, after a fault, that every record is in its place on the disks and in the destination.

Called by the fault suite. Shares no code with Roost, so that a mistake in Roost cannot hide itself: this module has its
own code to read ledgers, JSON, hashes and the safetensors header. Reads only. Ledgers are copied before they are
opened, because opening a ledger would roll back the journal that a killed writer left.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

TEMPORARY = (".aside", ".capture-")
_JOURNALS = ("", "-wal", "-journal")


@dataclass
class Account:
    """The place in which each record was found, and all faults."""

    delivered: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    """Records that are not delivered, but complete on a host whose ledger has them as done."""
    quarantined: dict[int, str] = field(default_factory=dict)
    """The quarantined records with their causes."""
    open: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    """Records that a ledger has as done, but that do not exist."""
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """All other faults."""

    @property
    def faults(self) -> list[str]:
        """All faults, a sentence each."""
        return [*self.lost, *self.duplicated, *self.corrupt, *self.problems]


def content_digest(shard: Path) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of a safetensors file's tensors.

    Raises ValueError if the file is no safetensors file.
    The metadata is left out, because a record's request id differs between attempts and its tensors must not.
    """
    raw = shard.read_bytes()
    if len(raw) < 8:
        raise ValueError(f"{shard.name} has {len(raw)} bytes")
    end = 8 + int.from_bytes(raw[:8], "little")
    if end > len(raw):
        raise ValueError(f"{shard.name} ends inside its header")
    header: dict[str, Any] = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    digest, longest = hashlib.sha256(), 0
    for name, tensor in sorted(header.items()):
        begin, stop = tensor["data_offsets"]
        longest = max(longest, stop)
        digest.update(json.dumps([name, tensor["dtype"], tensor["shape"], stop - begin]).encode())
        digest.update(raw[end + begin : end + stop])
    if end + longest != len(raw):
        raise ValueError(f"{shard.name} has {len(raw)} bytes, its header speaks of {end + longest}")
    return digest.hexdigest()


def truth_of(destination: Path) -> dict[int, str]:
    """Return the content digest of every shard of an undisturbed run, by index."""
    return {_index(path): content_digest(path) for path in _delivered(destination)}


def examine(
    destination: Path, runs: Mapping[str, Path], truth: Mapping[int, str], planted: Iterable[tuple[str, int]] = ()
) -> Account:
    """Return the account of every record of `truth`, from the destination and each living host's folder of the run.

    `planted` has (host, index) of the shards that were damaged on purpose. Such a record counts as open, even if the
    host's ledger has it as done.
    """
    account = Account()
    _destination(account, destination, truth)
    for host, run in runs.items():
        _host(account, host, run, truth, {index for name, index in planted if name == host})
    account.held -= account.delivered
    for index in account.delivered | account.held:
        account.quarantined.pop(index, None)
    account.open = set(truth) - account.delivered - account.held - set(account.quarantined)
    return account


def leftovers(workdir: Path, dump_dir: Path, run: str) -> list[str]:
    """Return the files of an ended and cleaned run that are still on a host, and all temporary files."""
    found = [path for path in (workdir / "runs" / run,) if path.exists()]
    found += [path for path in workdir.rglob("*") if path.name.startswith(TEMPORARY)]
    if dump_dir.is_dir():
        found += [path for path in dump_dir.iterdir() if path.name != ".roost"]
    return [str(path) for path in found]


def finished(run: Path) -> dict[int, str]:
    """Return the states of a host's ledger rows by index; empty if there is no ledger yet."""
    return {row[0]: row[1] for row in _rows(run / "ledger.sqlite", "SELECT idx, state FROM records")}


def _destination(account: Account, destination: Path, truth: Mapping[int, str]) -> None:
    ledger = destination / "roost" / "ledger.sqlite"
    rows = {row[0]: row[1:] for row in _rows(ledger, "SELECT idx, size_bytes, xxh3 FROM deliveries")}
    files: dict[int, Path] = {}
    for path in _delivered(destination):
        index = _index(path)
        if index in files:
            account.duplicated.append(f"record {index} lies twice at the destination")
        files[index] = path
    for index, path in files.items():
        wrong = _wrong(path, rows.get(index), truth.get(index))
        if wrong:
            account.corrupt.append(f"the destination's record {index} {wrong}")
        elif index in rows:
            account.delivered.add(index)
    account.lost += [f"record {index} was delivered and is gone" for index in rows if index not in files]


def _host(account: Account, host: str, run: Path, truth: Mapping[int, str], planted: set[int]) -> None:
    query = "SELECT idx, state, size_bytes, xxh3, cause FROM records"
    for index, state, size, digest, cause in _rows(run / "ledger.sqlite", query):
        shard = run / "shards" / f"hs_{index}.safetensors"
        if index not in truth:
            account.problems.append(f"{host} has a record {index} that the dataset lacks")
        elif state == "quarantined":
            account.quarantined[index] = cause or ""
            if not cause:
                account.problems.append(f"{host} quarantined record {index} without a cause")
        elif state == "freed" and index not in account.delivered:
            account.lost.append(f"{host} freed record {index}, which is not at the destination")
        elif state == "done" and index not in planted:
            _held(account, host, index, shard, (size, digest), truth[index])


def _held(account: Account, host: str, index: int, shard: Path, row: tuple[int, str], truth: str) -> None:
    if not shard.exists():
        account.lost.append(f"{host} has a ledger row and no shard of record {index}")
    elif wrong := _wrong(shard, row, truth):
        account.corrupt.append(f"{host}'s record {index} {wrong}")
    else:
        account.held.add(index)


def _wrong(shard: Path, row: tuple[int, str] | None, truth: str | None) -> str:
    """Return the fault of a file under its final name; "" if it agrees with its row and has the true content."""
    content = shard.read_bytes()
    if row is not None and len(content) != row[0]:
        return f"has {len(content)} bytes, its row says {row[0]}"
    if row is not None and xxhash.xxh3_128_hexdigest(content) != row[1]:
        return "has another digest than its row"
    try:
        found = content_digest(shard)
    except (ValueError, KeyError) as error:
        return f"is no shard: {error}"
    return "" if found == truth else "differs from the undisturbed run's"


def _rows(ledger: Path, query: str) -> list[tuple[Any, ...]]:
    if not ledger.exists():
        return []
    with tempfile.TemporaryDirectory(prefix="roost-faults-ledger-") as folder:
        copy = Path(folder) / "ledger.sqlite"
        for suffix in _JOURNALS:
            source = ledger.with_name(ledger.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with closing(sqlite3.connect(copy)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # killed before its first commit
                    return []
                raise


def _delivered(destination: Path) -> list[Path]:
    """Return the delivered shards. A run of answers has them in another folder."""
    return [*_shards(destination / "hidden_states"), *_shards(destination / "answers")]


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("hs_*")) if folder.is_dir() else []


def _index(path: Path) -> int:
    return int(path.name.removeprefix("hs_").split(".")[0])
