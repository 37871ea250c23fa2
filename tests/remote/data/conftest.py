"""Tokenizers with any chat template, sources on disk, and the verbs called in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.paths import Workdir
from tests.remote.data.samples import GENERATION, SPECIALS, MakeTokenizer


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """A byte-level tokenizer (one token a byte, special tokens whole) with a chat template of one's choice."""

    def make(template: str = GENERATION, *, specials: list[str] | None = None, eos: str = "</s>") -> Path:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        folder = tmp_path / f"tokenizer-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([*SPECIALS, *(specials or [])])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": eos,
            "chat_template": template,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path / "workdir"), Report(io.StringIO()))
