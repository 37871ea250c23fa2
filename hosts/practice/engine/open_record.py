"""Opens one record with speculators 0.9.0's own dataset class. Runs in that reader's venv: `open_record.py DEST INDEX`.

Called by the demo; reads only. Prints one JSON object: the record's tensors with their shapes and dtypes.
"""

from __future__ import annotations

import json
import sys

import torch
from speculators.train.data import ArrowDataset

LONGEST = 1 << 20
"""Tokens; more than any record has, because the demo shows a whole record."""


def main(destination: str, index: int) -> None:
    """Load the record as a training loop would. A missing shard, or a shard of other tokens, is an error."""
    dataset = ArrowDataset(LONGEST, destination, on_missing="raise", hidden_states_dtype=torch.float32)
    record = dataset[index]
    if not isinstance(record, dict):
        sys.exit(f"speculators does not accept record {index}: {record.reason}")
    shapes = {name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" for name, value in record.items()}
    finite = bool(record["hidden_states"].isfinite().all() and record["verifier_last_hidden_states"].isfinite().all())
    print(json.dumps({"records": len(dataset), "finite": finite, "tensors": shapes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
