"""Chat templates that behave as the real ones do: what they strip, drop, trim, merge and add, without a generation tag.

Each is written for these tests; the model family whose manners it has is named beside it.
"""

from __future__ import annotations

CHATML = (  # Qwen2.5: a default system prompt, turns closed by a token and a line break, tool calls as JSON
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINKING = (  # Qwen3: thinking is dropped from all turns but those after the last question; an empty one is added there
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% set parts = m.content.split('</think>') %}"
    "{% set answer = parts[-1].lstrip('\n') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ answer }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

REASONER = (  # DeepSeek-R1: thinking is always dropped, and the generation prompt opens it
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'system' %}{{ m.content }}"
    "{% else %}<|assistant|>{{ m.content.split('</think>')[-1] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)

TRIMMING = (  # Llama 3: headers between tokens, contents trimmed, the end of a turn is not the end of sequence
    "{{ bos_token }}{% for m in messages %}<|start_header|>{{ m.role }}<|end_header|>\n\n"
    "{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}"
)

BRACKETS = (  # Mistral: system text goes into the last question, a space before the answer, </s> after it
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set turns = messages[1:] if system else messages %}"
    "{% for m in turns %}{% if m.role == 'user' %}"
    "[INST] {% if loop.last or loop.index0 == turns | length - 2 %}{{ system ~ '\n\n' if system else '' }}{% endif %}"
    "{{ m.content }}[/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)

RENAMING = (  # Gemma: the assistant is `model`, contents trimmed, no system role
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

UNCLOSED = (  # GLM-4: no token closes a turn; generation ends at the next role's token, which is an end of sequence
    "[gMASK]{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

SECTIONS = (  # Kimi-K2: tool calls in a section of their own, results with the call's id
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}<|calls|>{% for call in m.tool_calls %}{{ call.id }}<|arguments|>"
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{% endfor %}<|end_calls|>{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)

STRICT_TOOLS = (  # refuses a tool's answer without a call before it; joins arguments as text
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PLAIN = (  # Alpaca: no special tokens at all
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% else %}### Response:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)

SPECIALS = [
    "<|start_header|>",
    "<|end_header|>",
    "<|eot|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_tool|>",
    "<|im_middle|>",
    "<|calls|>",
    "<|arguments|>",
    "<|end_calls|>",
    "[gMASK]",
]

REASONING_KEY = (  # Kimi-K2-Thinking, MiniMax: the last turn's reasoning is a key of its own
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINKING_KEY = REASONING_KEY.replace("reasoning_content", "thinking")  # gpt-oss reads this one

CALL_OR_CONTENT = (  # Llama 3.1: a turn with a call shows the call alone
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

STRICT_IDS = (  # Mistral: the model writes the ids of its calls, of nine characters each
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[CALLS]{% for call in m.tool_calls %}"
    "{% if call.id is undefined or call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}{% endfor %}"
    "{{ eos_token }}{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
