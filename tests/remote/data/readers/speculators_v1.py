"""Run under a venv with speculators 0.7: `speculators_v1.py DATA` loads every sample with the legacy loader."""

from __future__ import annotations

import json
import re
import sys

import torch
from speculators.train.data import SampleFileDataset


def main(folder: str) -> None:
    dataset = SampleFileDataset(max_len=512, datapath=folder, hidden_states_dtype=torch.float32)
    found = {}
    for place, name in enumerate(map(str, dataset.data)):
        match = re.search(r"data_(\d+)\.pt$", name)
        assert match, name
        sample = dataset[place]
        found[match[1]] = {
            "input_ids": sample["input_ids"].tolist(),
            "loss_mask": sample["loss_mask"].tolist(),
            "aux": sample["hidden_states"].double().sum().item(),
            "aux_shape": list(sample["hidden_states"].shape),
            "final": sample["verifier_last_hidden_states"].double().sum().item(),
            "length": dataset.approx_lengths[place],
        }
    print(json.dumps({"records": [found[key] for key in sorted(found, key=int)]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
