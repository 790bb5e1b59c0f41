"""The tiny base model's own dialect, as TRL's GRPOTrainer can render and read it."""

from __future__ import annotations

from typing import Any

_SAID = "{{ message['content'] + '<|end|>' }}{% endgeneration %}"
_SAID_OR_CALLED = (
    "{{ message['content'] }}{% for call in message['tool_calls'] %}"
    """{{ '{"name": ' + call['function']['name'] | tojson + ', "arguments": ' """
    "+ call['function']['arguments'] | tojson + '}' }}"
    "{% endfor %}{{ '<|end|>' }}{% endgeneration %}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"arguments":\s*',
            "close_pattern": r"\}\s*(<\|end\|>|$)",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}
"""How transformers takes a reply apart: a call is a bare JSON object that ends the reply."""


def teach_tools(tokenizer: Any) -> Any:
    """The tokenizer with templates for calls; what has none is rendered as before.

    Tools are not told: the base knows the four of the ``sql`` environment.
    """
    tokenizer.chat_template = tokenizer.chat_template.replace(_SAID, _SAID_OR_CALLED)
    tokenizer.response_template = RESPONSE
    return tokenizer
