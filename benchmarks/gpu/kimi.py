"""A model folder as Kimi-K2.5 publishes it, with fewer layers and random weights: config, nesting, names and int4.

    python -m benchmarks.gpu.kimi ~/models/kimi --layers 2 [--dense 1]

The config is the published one but for `num_hidden_layers` (and `first_k_dense_replace`, if more blocks than the
first are dense): the language model nested in `text_config`, routed experts of true width in int4, groups of 32
(compressed-tensors), code of its own beside it, a tiktoken tokenizer with code of its own. The vision tower's weights
are left out, since requests are text. One layer of experts is 9.4 GB; it is drawn on the GPU if there is one.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu.quantise import COMPRESSED, GROUP, KIMI_IGNORES

TEMPLATES = Path(__file__).resolve().parents[2] / "tests" / "remote" / "data" / "chat_templates"
WORDS = 163_584
"""Ranks of the tokenizer; special tokens come after them."""
SPECIALS = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<|media_begin|>": 163602,
    "<|media_content|>": 163603,
    "<|media_end|>": 163604,
    "<|media_pad|>": 163605,
    "<think>": 163606,
    "</think>": 163607,
    "[UNK]": 163838,
    "[PAD]": 163839,
}
TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "pad_token_id": 163839,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "quantization_config": {**COMPRESSED, "ignore": KIMI_IGNORES},
}
VISION: dict[str, Any] = {
    "init_pos_emb_height": 64,
    "init_pos_emb_time": 4,
    "init_pos_emb_width": 64,
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "mm_hidden_size": 1152,
    "mm_projector_type": "patchmerger",
    "patch_size": 14,
    "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-05,
    "text_hidden_size": 7168,
    "video_attn_type": "spatial_temporal",
    "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304,
    "vt_num_attention_heads": 16,
    "vt_num_hidden_layers": 27,
}
CONFIGURATION = """\
from transformers import DeepseekV3Config, PretrainedConfig


class KimiK25Config(PretrainedConfig):
    model_type = "kimi_k25"

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        text = dict(text_config or {})
        text["model_type"] = "deepseek_v3"
        self.text_config = DeepseekV3Config(**text)
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**kwargs)
"""


PROCESSOR = '''\
from types import SimpleNamespace

from transformers import AutoTokenizer, ProcessorMixin


class KimiK25Processor(ProcessorMixin):
    """What a server of text alone asks of Kimi's processor: its tokenizer and its settings."""

    def __init__(self, tokenizer, media_proc_cfg):
        self.tokenizer = tokenizer
        self.image_processor = self.media_processor = SimpleNamespace(media_proc_cfg=media_proc_cfg)
        self.chat_template = getattr(tokenizer, "chat_template", None)

    @classmethod
    def from_pretrained(cls, folder, trust_remote_code=False, **_):
        import json
        from pathlib import Path

        settings = json.loads((Path(folder) / "preprocessor_config.json").read_text())
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        return cls(tokenizer, settings["media_proc_cfg"])
'''
MEDIA = {
    "in_patch_limit": 16384,
    "patch_size": 14,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_kernel_size": 2,
    "fixed_output_tokens": None,
    "patch_limit_on_one_side": 512,
}


def config(layers: int, dense: int = 1) -> dict[str, Any]:
    """The published `config.json` with so many layers, the first `dense` of them without experts."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "bos_token_id": 163584,
        "eos_token_id": 163585,
        "pad_token_id": 163839,
        "ignore_index": -100,
        "media_placeholder_token_id": 163605,
        "tie_word_embeddings": False,
        "text_config": {**TEXT, "num_hidden_layers": layers, "first_k_dense_replace": dense, "dtype": "bfloat16"},
        "vision_config": VISION,
    }


def write(folder: Path, layers: int, dense: int = 1) -> None:
    """Make the whole folder; an older one is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    said = config(layers, dense)
    (folder / "config.json").write_text(json.dumps(said, indent=1))
    write_code(folder)
    write_tokenizer(folder)
    _Files(folder).write_all(said["text_config"])


def write_code(folder: Path) -> None:
    """The model's own code: its configuration, and the processor that a server builds also for text alone."""
    (folder / "configuration_kimi_k25.py").write_text(CONFIGURATION)
    (folder / "kimi_k25_processor.py").write_text(PROCESSOR)
    said = {"auto_map": {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"}, "media_proc_cfg": MEDIA}
    (folder / "preprocessor_config.json").write_text(json.dumps(said, indent=1))


def wrap(folder: Path) -> Path:
    """Make the DeepSeek-V3 in `folder` the language model of a Kimi-K2.5: config, code, names."""
    text = json.loads((folder / "config.json").read_text())
    outer = config(1)
    vision = {**VISION, "text_hidden_size": text["hidden_size"]}
    said = {**outer, "text_config": {**text, "model_type": "kimi_k2"}, "vision_config": vision}
    said |= {key: text[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps(said, indent=1))
    write_code(folder)
    write_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tokenizer(folder: Path) -> None:
    """Ranks that merge letters to pairs, the published special tokens at their ids, and code of its own."""
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    draw = random.Random(0)
    longer = {draw.randbytes(5) for _ in range(2 * WORDS)}
    pieces += sorted(longer)[: WORDS - len(pieces)]
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    (folder / "tiktoken.model").write_text("".join(lines))
    shutil.copyfile(TEMPLATES / "tokenization_kimi.txt", folder / "tokenization_kimi.py")
    said = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": {str(at): {"content": name, "special": True} for name, at in SPECIALS.items()},
        **{"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"},
        "chat_template": (TEMPLATES / "kimi-k2.5.jinja").read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=1))


class _Files:
    """Weight files, and the index that names each tensor's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._index: dict[str, str] = {}
        self._waiting: dict[str, torch.Tensor] = {}

    def write_all(self, said: dict[str, Any]) -> None:
        hidden = said["hidden_size"]
        self._matrix("model.embed_tokens", said["vocab_size"], hidden, 1.0)
        self._matrix("lm_head", said["vocab_size"], hidden, 0.05)
        self._norm("model.norm", hidden)
        for layer in range(said["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            self._norm(f"{prefix}input_layernorm", hidden)
            self._norm(f"{prefix}post_attention_layernorm", hidden)
            self._attention(f"{prefix}self_attn.", said)
            self._feed_forward(f"{prefix}mlp.", said, layer)
            self._flush()
        index = {"metadata": {}, "weight_map": self._index}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def _attention(self, prefix: str, said: dict[str, Any]) -> None:
        hidden, heads = said["hidden_size"], said["num_attention_heads"]
        query, latent, rope = said["q_lora_rank"], said["kv_lora_rank"], said["qk_rope_head_dim"]
        key, value = said["qk_nope_head_dim"], said["v_head_dim"]
        self._matrix(f"{prefix}q_a_proj", query, hidden)
        self._norm(f"{prefix}q_a_layernorm", query)
        self._matrix(f"{prefix}q_b_proj", heads * (key + rope), query)
        self._matrix(f"{prefix}kv_a_proj_with_mqa", latent + rope, hidden)
        self._norm(f"{prefix}kv_a_layernorm", latent)
        self._matrix(f"{prefix}kv_b_proj", heads * (key + value), latent)
        self._matrix(f"{prefix}o_proj", hidden, heads * value)

    def _feed_forward(self, prefix: str, said: dict[str, Any], layer: int) -> None:
        hidden, width = said["hidden_size"], said["moe_intermediate_size"]
        if layer < said["first_k_dense_replace"]:
            self._gated(prefix, hidden, said["intermediate_size"])
            return
        experts = said["n_routed_experts"]
        self._matrix(f"{prefix}gate", experts, hidden)
        self._add(f"{prefix}gate.e_score_correction_bias", torch.zeros(experts))
        self._gated(f"{prefix}shared_experts.", hidden, width * said["n_shared_experts"])
        for expert in range(experts):
            name = f"{prefix}experts.{expert}."
            self._packed(f"{name}gate_proj", width, hidden)
            self._packed(f"{name}up_proj", width, hidden)
            self._packed(f"{name}down_proj", hidden, width)
            if expert % 64 == 63:
                self._flush()

    def _gated(self, prefix: str, hidden: int, width: int) -> None:
        self._matrix(f"{prefix}gate_proj", width, hidden)
        self._matrix(f"{prefix}up_proj", width, hidden)
        self._matrix(f"{prefix}down_proj", hidden, width)

    def _matrix(self, name: str, rows: int, columns: int, deviation: float | None = None) -> None:
        drawn = torch.randn(rows, columns, device=self._device, dtype=torch.bfloat16)
        self._add(f"{name}.weight", drawn * (deviation or columns**-0.5))

    def _norm(self, name: str, width: int) -> None:
        self._add(f"{name}.weight", (1 + 0.1 * torch.randn(width)).to(torch.bfloat16))

    def _packed(self, name: str, rows: int, columns: int) -> None:
        """Random words are random nibbles of deviation 4.6 around -0.5."""
        low, high = -(2**31), 2**31 - 1
        words = torch.randint(low, high, (rows, columns // 8), device=self._device, dtype=torch.int32)
        scale = torch.full((rows, columns // GROUP), columns**-0.5 / 4.6, dtype=torch.bfloat16)
        self._add(f"{name}.weight_packed", words)
        self._add(f"{name}.weight_scale", scale)
        self._add(f"{name}.weight_shape", torch.tensor([rows, columns], dtype=torch.int32))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self._waiting[f"language_model.{name}"] = tensor.cpu()

    def _flush(self) -> None:
        file = f"model-{len(set(self._index.values())):05d}.safetensors"
        save_file(self._waiting, self._folder / file, metadata={"format": "pt"})
        self._index |= dict.fromkeys(self._waiting, file)
        self._waiting.clear()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--dense", type=int, default=1, help="how many of them, the first, have no experts")
    given = options.parse_args()
    write(given.folder, given.layers, given.dense)


if __name__ == "__main__":
    main()
