"""What `inv unpack` prints."""

from __future__ import annotations

from hosts.console.output import Output
from hosts.console.text import size
from remote.shared.messages.codec import UnpackResult


def show_unpacked(output: Output, result: UnpackResult) -> None:
    """The damaged ones with their reason, then what was made plain."""
    for path, reason in result.failed.items():
        output.note(f"{path}: {reason}")
    ratio = result.packed_bytes / result.plain_bytes if result.plain_bytes else 0.0
    output.line(
        f"{result.unpacked:,} shards unpacked to {size(result.plain_bytes)} (compressed: {ratio:.3f} of that), "
        f"{result.present:,} were plain already, {len(result.failed):,} are damaged."
    )
