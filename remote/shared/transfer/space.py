"""Does what is about to be pulled fit into the destination? Asked before a byte is sent. Runs where records land."""

from __future__ import annotations

import threading

from remote.shared.errors import HostError
from remote.shared.transfer.destination import Destination

PACKED_SHARE = 0.7
"""Of a shard's bytes, where it is kept compressed."""


class Space:
    """Adds up what all hosts of one pull are going to bring."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._lock = threading.Lock()
        self._reserved = 0.0
        self._free = destination.room_bytes()

    def reserve(self, size: int) -> None:
        """Set room for `size` plain bytes aside; raises HostError where that is too much."""
        needed = size * (PACKED_SHARE if self._destination.store == "compressed" else 1)
        with self._lock:
            self._reserved += needed
            if not size or self._reserved <= self._free:
                return
        raise HostError(
            f"{self._destination.name} has room for {max(self._free, 0) / 1e9:.2f} GB, "
            f"and {self._reserved / 1e9:.2f} GB are to come.",
            remedy="Pull to a larger disk, pull fewer hosts at once, or keep shards with --store compressed.",
        )
