"""Reads a dataset's lengths and manifest on the laptop, with the standard library only.

Called by `hosts/commands`; reads the dataset folder, writes nothing.
"""

from __future__ import annotations

import ast
import sys
from array import array
from pathlib import Path

from pydantic import ValidationError

from hosts.errors import UsageError
from remote.shared.messages.dataset import Manifest

_MAGIC = b"\x93NUMPY"


def read_manifest(dataset: Path) -> Manifest:
    """Return the dataset's manifest; raises UsageError if there is no dataset."""
    path = dataset / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"There is no dataset at {dataset}: {path.name} could not be read ({error.strerror}).",
            remedy="Make one with inv prepare.",
        ) from error
    except ValidationError as error:
        raise UsageError(f"{path} is not a dataset's manifest: {error.errors()[0]['msg']}.") from error


def read_lengths(dataset: Path, manifest: Manifest) -> array[int]:
    """Return the tokens of every record by index; raises UsageError if they contradict the manifest.

    `lengths.npy` is int32, little-endian, one-dimensional; a million records take 4 MB.
    """
    path = dataset / "lengths.npy"
    try:
        lengths = _npy(path.read_bytes())
    except (OSError, ValueError, SyntaxError, KeyError, TypeError) as error:
        raise UsageError(f"{path} could not be read: {error}.", remedy="Prepare the dataset again.") from error
    if len(lengths) != manifest.records or sum(lengths) != manifest.tokens:
        raise UsageError(
            f"{path} has {len(lengths)} records with {sum(lengths)} tokens, "
            f"but the manifest says {manifest.records} with {manifest.tokens}.",
            remedy="Prepare the dataset again.",
        )
    return lengths


def read_costs(dataset: Path, manifest: Manifest) -> array[int]:
    """Return the tokens by which records are shared out: their lengths, and of prompts those expected in the end."""
    lengths = read_lengths(dataset, manifest)
    if manifest.kind != "prompts":
        return lengths
    path = dataset / "expected.npy"
    try:
        expected = _npy(path.read_bytes())
    except (OSError, ValueError, SyntaxError, KeyError, TypeError) as error:
        raise UsageError(f"{path} could not be read: {error}.", remedy="Plan the answers again with --anew.") from error
    if len(expected) != len(lengths):
        raise UsageError(f"{path} has {len(expected)} entries, but the dataset has {len(lengths)} prompts.")
    return expected


def _npy(content: bytes) -> array[int]:
    """Return the numbers of an `.npy` file of format 1, int32."""
    if not content.startswith(_MAGIC) or content[6] != 1:
        raise ValueError("it is not an .npy file of format 1")
    start = 10 + int.from_bytes(content[8:10], "little")
    header = ast.literal_eval(content[10:start].decode("latin-1"))
    if header["descr"] != "<i4" or header["fortran_order"] or len(header["shape"]) != 1:
        raise ValueError(f"it holds {header['descr']} of shape {header['shape']}, not one row of int32")
    numbers = array("i")
    numbers.frombytes(content[start:])
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != header["shape"][0]:
        raise ValueError("it was cut short")
    return numbers
