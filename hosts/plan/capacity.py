"""Bytes, room and hours of a host's share, and what would help where it does not fit. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remote.shared.messages.run import RunIdentity
from remote.shared.shard.layout import Layout


@dataclass(frozen=True)
class RecordSize:
    """Bytes of a record as it lies in the RAM disk and on disk."""

    slots: int
    hidden_size: int
    dtype: str

    @classmethod
    def of(cls, identity: RunIdentity) -> RecordSize:
        """The size that follows from a run's identity."""
        return cls(len(identity.boundaries), identity.hidden_size, identity.dtype)

    @property
    def token_bytes(self) -> int:
        """A token's states and its id: 57,352 for four slots of 7,168 in bf16."""
        return self.records_bytes(0, 1)

    def records_bytes(self, records: int, tokens: int) -> int:
        """Bytes of `records` shards with `tokens` tokens in all."""
        together = Layout(tokens, self.slots, self.hidden_size, self.dtype)
        return together.size + (records - 1) * together.header_bytes


@dataclass(frozen=True)
class Room:
    """What a host has."""

    disk_free_bytes: int
    min_free_bytes: int
    """Left alone on that file system."""
    ramdisk_bytes: int
    """Size of the dump directory's file system, or the memory that is available where that is less."""
    high_water_bytes: int
    """What the inventory allows the dumps to take."""
    packed_share: float = 1.0
    """What a shard takes on that disk, of its plain bytes: less than 1 where it is kept compressed."""


@dataclass(frozen=True)
class Share:
    """What a host is to do."""

    host: str
    records: int
    tokens: int
    longest: int
    """Tokens of its longest record."""
    tokens_per_second: float | None


@dataclass(frozen=True)
class Forecast:
    """What a share takes on its host, and each reason why it does not fit."""

    share: Share
    disk_bytes: int
    disk_room_bytes: int
    ramdisk_peak_bytes: int
    """The dump directory's high-water mark for this share: the mark itself, or all of the share if that is less."""
    hours: float | None
    problems: tuple[str, ...]

    @property
    def disk_short_bytes(self) -> int:
        """By how much the disk is too small."""
        return max(0, self.disk_bytes - self.disk_room_bytes)


def forecast(share: Share, size: RecordSize, room: Room, *, freeing: bool = False) -> Forecast:
    """Return what `share` takes. With `freeing` shards leave while others are made, so the disk needs room for few.

    Then the extractor waits at `min_free` until a pull has freed space, and any room above that is enough.
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
    return [f"its disk is {gib(needed - room)} short: {gib(needed)} of shards, room for {gib(room)}"]


def _ramdisk(share: Share, size: RecordSize, room: Room, peak: int) -> list[str]:
    problems = []
    longest = size.records_bytes(1, share.longest)
    if longest > room.high_water_bytes:
        problems.append(
            f"its longest record is {gib(longest)} of dumps, and dump_high_water is {gib(room.high_water_bytes)}"
        )
    if peak > room.ramdisk_bytes:
        problems.append(
            f"its RAM disk is {gib(peak - room.ramdisk_bytes)} short: dumps take up to {gib(peak)}, "
            f"room for {gib(room.ramdisk_bytes)}"
        )
    return problems


def remedies(forecasts: list[Forecast], size: RecordSize, *, freeing: bool) -> list[str]:
    """What would make a plan fit that does not: each a sentence with its numbers."""
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
        return [f"the hosts have room for {gib(room)} together and need {gib(total)}: give the small ones less weight"]
    mean = room / len(forecasts)
    more = math.ceil((total - room) / mean) if mean else len(forecasts)
    return [f"{more} more {'host' if more == 1 else 'hosts'} with as much disk as these have on average"]


def _fewer_slots(forecasts: list[Forecast], size: RecordSize) -> list[str]:
    """Fewer aux layers, if one number of slots would do for every host."""
    for slots in range(size.slots - 1, 1, -1):
        smaller = RecordSize(slots, size.hidden_size, size.dtype)
        if all(smaller.records_bytes(one.share.records, one.share.tokens) <= one.disk_room_bytes for one in forecasts):
            return [f"fewer layers: {slots - 1} and the final state would fit"]
    return []


def gib(count: int) -> str:
    """Bytes for a person: `4.58 TiB`, `12.3 GiB`, `640 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
