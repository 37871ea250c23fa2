"""The tiny models' tokenizer: one token for each byte, and a multi-turn chat template. Runs inside `.engine`.

Called by `tiny_model.py`; writes only into the model's folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = 256
SPECIALS = (
    "<|bos|>",
    "<|eos|>",
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
)
BOS_ID, EOS_ID, PAD_ID = BYTES, BYTES + 1, BYTES + 2

# Each turn is a role marker, the content and an end-of-turn token. This token is inside the generation block, because
# the assistant is trained to stop. A tool call appears as the JSON that the assistant wrote.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('unknown role ' ~ message['role']) -}}
{%- endif -%}
{{- '<|' ~ message['role'] ~ '|>' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}
{{- message['content'] or '' -}}
{%- for call in message['tool_calls'] or [] -%}
{{- call['function'] | tojson -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endgeneration -%}
{%- else -%}
{{- message['content'] ~ '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def write_tokenizer(folder: Path, context_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`; ids 0-255 are bytes, then `SPECIALS` in order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "extra_special_tokens": {},
        "model_max_length": context_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
