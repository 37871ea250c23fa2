"""Computes bytes, room and hours of a host's share, and what would help if the share does not fit. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remote.shared.messages.run import RunIdentity
from remote.shared.shard.layout import Layout


@dataclass(frozen=True)
class RecordSize:
    """The size of a record, in the RAM disk and on disk."""

    slots: int
    hidden_size: int
    dtype: str

    @classmethod
    def of(cls, identity: RunIdentity) -> RecordSize:
        """Return the size for a run's identity."""
        return cls(len(identity.boundaries), identity.hidden_size, identity.dtype)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token's states and its id: 57,352 for four slots of 7,168 in bf16."""
        return self.records_bytes(0, 1)

    def records_bytes(self, records: int, tokens: int) -> int:
        """Return the bytes of `records` shards with `tokens` tokens in all."""
        together = Layout(tokens, self.slots, self.hidden_size, self.dtype)
        return together.size + (records - 1) * together.header_bytes


@dataclass(frozen=True)
class Room:
    """The room that a host has."""

    disk_free_bytes: int
    min_free_bytes: int
    """Bytes that must stay free on that file system."""
    ramdisk_bytes: int
    """The size of the dump directory's file system, or the available memory if that is less."""
    high_water_bytes: int
    """The size that the inventory allows for dumps."""
    packed_share: float = 1.0
    """A shard's bytes on disk divided by its plain bytes: less than 1 if shards are stored compressed."""


@dataclass(frozen=True)
class Share:
    """The records of one host."""

    host: str
    records: int
    tokens: int
    longest: int
    """Tokens of the longest record."""
    tokens_per_second: float | None


@dataclass(frozen=True)
class Forecast:
    """The bytes and hours of a share on its host, and each reason why the share does not fit."""

    share: Share
    disk_bytes: int
    disk_room_bytes: int
    ramdisk_peak_bytes: int
    """The dump directory's high-water mark for this share: the mark itself, or all of the share if that is less."""
    hours: float | None
    problems: tuple[str, ...]

    @property
    def disk_short_bytes(self) -> int:
        """The number of bytes that the disk lacks."""
        return max(0, self.disk_bytes - self.disk_room_bytes)


def forecast(share: Share, size: RecordSize, room: Room, *, freeing: bool = False) -> Forecast:
    """Return the bytes and hours of `share`.

    With `freeing`, a pull removes shards during the extraction, and the extractor waits at `min_free` for it, so any
    room above `min_free` is enough.
    """
    needed = size.records_bytes(share.records, share.tokens)
    kept = int(needed * room.packed_share)
    on_disk = min(kept, size.records_bytes(1, share.longest)) if freeing else kept
    disk_room = max(0, room.disk_free_bytes - room.min_free_bytes)
    peak = min(room.high_water_bytes, needed)
    hours = share.tokens / share.tokens_per_second / 3600 if share.tokens_per_second else None
    problems = [*_disk(on_disk, disk_room), *_ramdisk(share, size, room, peak)]
    return Forecast(share, kept, disk_room, peak, hours, tuple(problems))


def _disk(needed: int, room: int) -> list[str]:
    if needed <= room:
        return []
    return [f"its disk lacks {gib(needed - room)}: {gib(needed)} of shards, room for {gib(room)}"]


def _ramdisk(share: Share, size: RecordSize, room: Room, peak: int) -> list[str]:
    problems = []
    longest = size.records_bytes(1, share.longest)
    if longest > room.high_water_bytes:
        problems.append(
            f"its longest record is {gib(longest)} of dumps, but dump_high_water is {gib(room.high_water_bytes)}"
        )
    if peak > room.ramdisk_bytes:
        problems.append(
            f"its RAM disk lacks {gib(peak - room.ramdisk_bytes)}: up to {gib(peak)} of dumps, "
            f"room for {gib(room.ramdisk_bytes)}"
        )
    return problems


def remedies(forecasts: list[Forecast], size: RecordSize, *, freeing: bool) -> list[str]:
    """Return a phrase, with numbers, for each change that would make the plan fit."""
    short = [one for one in forecasts if one.problems]
    if not short:
        return []
    found = []
    if not freeing and any(one.disk_short_bytes for one in short):
        found += [*_more_hosts(forecasts), "pull while extracting: plan with --freeing, then inv pull --follow --free"]
        found += _fewer_slots(forecasts, size)
    if any(one.ramdisk_peak_bytes > 0 and "RAM disk" in " ".join(one.problems) for one in short):
        found.append("lower dump_high_water in the inventory, or enlarge the RAM disk (mount -o remount,size=…)")
    if any("longest record" in " ".join(one.problems) for one in short):
        found.append("raise dump_high_water, or prepare the dataset with a smaller --max-len")
    return found


def _more_hosts(forecasts: list[Forecast]) -> list[str]:
    total = sum(one.disk_bytes for one in forecasts)
    room = sum(one.disk_room_bytes for one in forecasts)
    if room >= total:
        return [f"the hosts have room for {gib(room)} together but need {gib(total)}: give small hosts less weight"]
    mean = room / len(forecasts)
    more = math.ceil((total - room) / mean) if mean else len(forecasts)
    return [f"{more} more {'host' if more == 1 else 'hosts'} with as much disk as these have on average"]


def _fewer_slots(forecasts: list[Forecast], size: RecordSize) -> list[str]:
    """Return the number of auxiliary layers with which the shares of all hosts would fit, as a phrase."""
    for slots in range(size.slots - 1, 1, -1):
        smaller = RecordSize(slots, size.hidden_size, size.dtype)
        if all(smaller.records_bytes(one.share.records, one.share.tokens) <= one.disk_room_bytes for one in forecasts):
            return [f"fewer layers: {slots - 1} and the final state would fit"]
    return []


def gib(count: int) -> str:
    """Return bytes for a person: `4.58 TiB`, `12.3 GiB`, `640 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
