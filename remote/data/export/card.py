"""Writes the files beside an export's samples: the card for people, JSON for programs, and each trainer's side files.

Called by `remote.data.export.verb`; imports torch only for `token_freq.pt`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from remote.data.dataset import DatasetFolder
from remote.shared.files import write_whole
from remote.shared.messages.export import ExportCard, Format
from remote.shared.words import counted

CARD = "roost/export.json"

_LOADING: dict[Format, str] = {
    "speculators": 'ArrowDataset(max_len=…, datapath="{load}", on_missing="raise")   # speculators 0.8 and later',
    "speculators-v1": 'SampleFileDataset(max_len=…, datapath="{load}")   # speculators up to 0.7',
    "specforge": 'OfflineManifestReader("{load}")   # SpecForge 0.2, strategy eagle3, target_repr hidden_state',
    "model-optimizer": 'OfflineSupervisedDataset(sorted(glob("{load}/*.pt")), answer_only_loss=True)',
}
_FP8_LOADING = """ArrowDataset(max_len=…, datapath="{load}", on_missing="raise",
                 transfer=FP8Transfer(Path("{load}/hidden_states")))   # speculators and hs-connectors 0.9"""


def write_card(root: Path, load: Path, card: ExportCard, dataset: DatasetFolder) -> None:
    """Write `README.md` and `roost/export.json`."""
    write_whole(root / "README.md", _text(load, card, dataset).encode())
    write_whole(root / CARD, card.model_dump_json(indent=1).encode())


def _text(load: Path, card: ExportCard, dataset: DatasetFolder) -> str:
    identity, manifest = card.identity, dataset.manifest
    sources = "".join(
        f"- `{Path(one.path).name}`: {one.records:,} records, xxh3-128 {one.xxh3}\n" for one in manifest.sources
    )
    norm = f", made with norm {card.norm}" if card.norm else ""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(card.versions.items()))
    missing = (
        f"\n**{counted(card.missing, 'record of the dataset is', 'records of the dataset are')} missing here.**\n"
        if card.missing
        else ""
    )
    return f"""# Hidden states for EAGLE-3 drafters

{counted(card.records, "record")}, {card.tokens:,} tokens, in the layout of **{card.format}**.
{missing}
    {(_LOADING[card.format] if card.dtype == "extracted" else _FP8_LOADING).format(load=load)}

| | |
|---|---|
| run | {identity.name}, planned as {identity.nonce} |
| model | `{identity.model_path}`, digest of its files {identity.model} |
| slots | boundaries {list(identity.boundaries)}; {card.convention} |
| as 0-based blocks | {card.blocks}: each slot is the output of this block (SGLang, EAGLE count so) |
| final state | {card.final_state}-norm{norm} |
| states | {_states(card)}, hidden size {identity.hidden_size} |
| dataset | xxh3-128 {card.dataset}; shuffled with seed {manifest.seed} |
| tokenizer, template | {manifest.tokenizer}, {manifest.template} |
| loss mask | {manifest.mask} records by method |
| versions | {versions} |
| content | xxh3-128 {card.content} over indices and shard digests |
{_losses(card)}
## Sources
{sources}
Index i in a file's name is row i of the dataset. Written {time.strftime("%Y-%m-%d", time.gmtime())} by Roost.
"""


def _states(card: ExportCard) -> str:
    dtype = card.identity.dtype
    return dtype if card.dtype == "extracted" else f"{dtype} made float8_e4m3fn, scales float32 [tokens, slots, 1]"


def _losses(card: ExportCard) -> str:
    """Return the section on float8; "" if the states are as extracted."""
    if card.dtype == "extracted":
        return ""
    slots = "".join(f"| {one.boundary} | {one.mean:.3%} | {one.worst:.3%} |\n" for one in card.errors)
    return f"""
## What float8 lost
Relative error of a token's state, |loaded - extracted| / |extracted|, as `FP8Transfer` loads it in bfloat16:

| boundary | mean over tokens | worst token |
|---|---|---|
{slots}
Train with `--hidden-states-backend fp8`. The default backend, `file`, takes the float8 values without their scales and
gives no warning.

These files are not the extracted shards: they carry no row sums and no marks of the run, and `inv verify` does not
take this folder. It checks the destination that the export was made from.
"""


def write_token_frequencies(dataset: DatasetFolder, path: Path) -> None:
    """Write `token_freq.pt` for speculators: {id: number of tokens with mask 1}, without zeros."""
    import torch

    counts = np.zeros(dataset.manifest.vocab_size, np.int64)
    for record in dataset.records([(0, dataset.manifest.records)]):
        held = np.bincount(record.input_ids[record.loss_mask == 1])
        counts[: len(held)] += held
    found = np.flatnonzero(counts)
    torch.save(dict(zip(found.tolist(), counts[found].tolist(), strict=True)), path)


def write_v1_side_files(folder: Path, card: ExportCard, dataset: DatasetFolder, indices: list[int]) -> None:
    """Write `sample_lengths.json` and `data_config.json` with the keys that tools of speculators v1 read."""
    lengths = {str(index): int(dataset.lengths[index]) for index in indices}
    write_whole(folder / "sample_lengths.json", json.dumps(lengths).encode())
    identity, manifest = card.identity, dataset.manifest
    config = {
        "version": "2.0",
        "generated_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": {"target_model_path": identity.model_path, "hidden_size": identity.hidden_size},
        "data": {
            "train_data_path": str(dataset.root),
            "seq_length": manifest.max_len or manifest.max_tokens,
            "num_samples": card.records,
            "seed": manifest.seed,
        },
        "hidden_states": {"layer_ids": identity.boundaries, "description": card.convention},
        "format": {"file_pattern": "data_{index}.pt", "dtype": identity.dtype},
    }
    write_whole(folder / "data_config.json", json.dumps(config, indent=1).encode())
