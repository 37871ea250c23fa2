"""Run under a venv with Model-Optimizer: `modelopt_offline.py DATA…` reads every dump with its offline dataset."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from modelopt.torch.speculative.eagle.utils import OfflineSupervisedDataset


def main(*folders: str) -> None:
    print(json.dumps([answer(folder) for folder in folders]))


def answer(folder: str) -> dict[str, object]:
    files = sorted(map(str, Path(folder).glob("*.pt")))
    dataset = OfflineSupervisedDataset(files, answer_only_loss=True)
    records = [
        {
            "input_ids": sample["input_ids"].tolist(),
            "loss_mask": sample["loss_mask"].tolist(),
            "aux": sample["aux_hidden_states"].double().sum().item(),
            "aux_shape": list(sample["aux_hidden_states"].shape),
            "final": sample["base_model_hidden_states"].double().sum().item(),
            "prenorm": sample["base_hidden_prenorm"],
        }
        for sample in (dataset[place] for place in range(len(dataset)))
    ]
    return {"records": records}


if __name__ == "__main__":
    main(*sys.argv[1:])
