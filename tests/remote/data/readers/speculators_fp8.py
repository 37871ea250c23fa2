"""Run under speculators 0.9: `speculators_fp8.py PLAIN FP8` loads every record of an export in float8 with FP8Transfer.

PLAIN is the same export as extracted. Prints one JSON line: what the loader returns for each record, as lists, and how
far the loaded states of each slot are off those of PLAIN, here and with the scales of hs-connectors' own writer: the
mean over all tokens of |loaded - plain| / |plain|. `collated` is the dtype that a trainer's batch has; `unscaled` is
what the default transfer loads.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from hs_connectors import FP8Transfer
from hs_connectors.fp8_utils import dequantize_fp8_tensor, quantize_tensor_to_fp8
from speculators.train.data import ArrowDataset, CollateFn

warnings.simplefilter("error", UserWarning)


def main(plain: str, fp8: str) -> None:
    before = ArrowDataset(max_len=512, datapath=plain, on_missing="raise")
    transfer = FP8Transfer(Path(fp8) / "hidden_states")
    after = ArrowDataset(max_len=512, datapath=fp8, on_missing="raise", transfer=transfer)
    wanted = [states(before[index]) for index in range(len(before))]
    samples = [after[index] for index in range(len(after))]
    found = [states(sample) for sample in samples]
    own = [dequantize_fp8_tensor(*quantize_tensor_to_fp8(one)) for one in wanted]
    batch = CollateFn(max_len=512, hidden_size=wanted[0].shape[-1])(samples)
    answer = {
        "records": [
            {"input_ids": sample["input_ids"].tolist(), "states": one.tolist()}
            for sample, one in zip(samples, found, strict=True)
        ],
        "errors": mean_errors(wanted, found),
        "own_errors": mean_errors(wanted, own),
        "collated": str(batch["hidden_states"].dtype),
        "unscaled": str(ArrowDataset(max_len=512, datapath=fp8, on_missing="raise")[0]["hidden_states"].dtype),
    }
    print(json.dumps(answer))


def states(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return [L, slots, H] of what the loader returns: the auxiliary slots side by side, and the final one."""
    final = sample["verifier_last_hidden_states"].unsqueeze(1)
    return torch.cat([sample["hidden_states"].unflatten(1, (-1, final.shape[-1])), final], 1)


def mean_errors(wanted: list[torch.Tensor], found: list[torch.Tensor]) -> list[float]:
    """Return the mean relative error of each slot over the tokens of all records."""
    true, loaded = torch.cat(wanted).double(), torch.cat(found).double()
    errors: list[float] = ((loaded - true).norm(dim=-1) / true.norm(dim=-1)).mean(0).tolist()
    return errors


if __name__ == "__main__":
    main(*sys.argv[1:])
