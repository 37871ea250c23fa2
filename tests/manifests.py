"""A dataset's manifest for tests that need its counts and nothing else of it."""

from __future__ import annotations

from remote.shared.messages.dataset import Manifest


def manifest(*, records: int, tokens: int, loss_tokens: int, max_tokens: int, vocab_size: int) -> Manifest:
    """Counts as given; from no sources, with digest `d`."""
    return Manifest(
        digest="d",
        records=records,
        tokens=tokens,
        loss_tokens=loss_tokens,
        max_tokens=max_tokens,
        sources=[],
        drops=[],
        tokenizer="t",
        tokenizer_path="/t",
        template="",
        mask={},
        seed=0,
        max_len=None,
        vocab_size=vocab_size,
    )
