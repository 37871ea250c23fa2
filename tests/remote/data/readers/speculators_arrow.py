"""Run under speculators 0.9: `speculators_arrow.py VERIFIER DATASET…` loads every record, then trains two steps.

Prints one JSON line with an answer a dataset: digests of what the loader returns for each record, and the losses.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.data import ArrowDataset, CollateFn
from transformers import LlamaConfig

warnings.simplefilter("error", UserWarning)


def main(verifier: str, *folders: str) -> None:
    print(json.dumps([answer(folder, verifier) for folder in folders]))


def answer(folder: str, verifier: str) -> dict[str, object]:
    dataset = ArrowDataset(max_len=512, datapath=folder, on_missing="raise", hidden_states_dtype=torch.float32)
    samples = [dataset[index] for index in range(len(dataset))]
    return {"records": [summary(sample) for sample in samples], "losses": train(samples, verifier)}


def summary(sample: dict[str, torch.Tensor]) -> dict[str, object]:
    return {
        "input_ids": sample["input_ids"].tolist(),
        "loss_mask": sample["loss_mask"].long().tolist(),
        "aux": sample["hidden_states"].double().sum().item(),
        "aux_shape": list(sample["hidden_states"].shape),
        "final": sample["verifier_last_hidden_states"].double().sum().item(),
    }


def train(samples: list[dict[str, torch.Tensor]], verifier: str) -> list[float]:
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(verifier)
    config.num_hidden_layers = 1
    model = Eagle3DraftModel.from_training_args(
        config,
        verifier_name_or_path=verifier,
        draft_vocab_size=config.vocab_size,
        norm_before_residual=False,
        ttt_steps=2,
        target_layer_ids=[1, 2, 3],
        draft_attn_impl="eager",
    ).float()
    batch = CollateFn(max_len=512, hidden_size=config.hidden_size, dtype=torch.float32)(samples)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for _ in range(2):
        _, loss, _ = model(**batch, ttt_steps=2, loss_config=resolve_loss_config("kl_div", "eager"))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
