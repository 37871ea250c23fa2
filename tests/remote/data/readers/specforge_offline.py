"""Run under a venv with SpecForge 0.2: `specforge_offline.py DATA` reads every feature file, as its trainer would."""

from __future__ import annotations

import json
import re
import sys

from specforge.runtime.data_plane.feature_store import LocalFeatureStore
from specforge.runtime.data_plane.offline_reader import OfflineManifestReader


def main(folder: str) -> None:
    store = LocalFeatureStore()
    found = {}
    for ref in OfflineManifestReader(folder, validate_files=True):
        match = re.search(r"rows_0-2000/data_(\d+)\.ckpt$", ref.feature_store_uri)
        assert match, ref.feature_store_uri
        sample, _ = store.get(ref)
        found[match[1]] = {
            "input_ids": sample["input_ids"].tolist(),
            "loss_mask": sample["loss_mask"].tolist(),
            "aux": sample["aux_hidden_state"].double().sum().item(),
            "aux_shape": list(sample["aux_hidden_state"].shape),
            "final": sample["hidden_state"].double().sum().item(),
            "tokens": ref.num_tokens,
        }
    print(json.dumps({"records": [found[key] for key in sorted(found, key=int)]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
