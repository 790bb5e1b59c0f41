"""What a tokenizer's chat template can do, found by trying it once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from stages.common.errors import UsageError

Message = dict[str, Any]
PLAIN_TEMPLATE = """{{ cls_token }}
{%- for message in messages %}{{ message['role'] + ': ' + message['content'] + sep_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""
"""For encoders, which have a token that the text begins with and one that ends a part."""
_USER, _REPLY, _OTHER = "qzuserqz", "qzreplyqz", "qzotherqz"


@dataclass(frozen=True)
class TemplateFacts:
    """What a chat template can render, found by trying."""

    template: str
    tool: bool
    """Shows the content of a tool message."""
    system: bool
    """Shows the content of a system message."""
    repeats: bool
    """Takes two user messages in a row."""
    turn_end: int | None
    """Id of the token that ends an assistant message."""
    opening: str
    """What the generation prompt adds, if it starts with a special token; else empty."""
    opening_ids: tuple[int, ...]
    controls: re.Pattern[str] | None
    """Matches the text of any special token."""


_FACTS: WeakKeyDictionary[Any, TemplateFacts] = WeakKeyDictionary()


def template_facts(tokenizer: Any) -> TemplateFacts:
    """What the tokenizer's template can render; probed once per template."""
    facts = _FACTS.get(tokenizer)
    if facts is None or facts.template != tokenizer.chat_template:
        facts = _FACTS[tokenizer] = _probe(tokenizer)
    return facts


def _probe(tokenizer: Any) -> TemplateFacts:
    user, reply = _message("user", _USER), _message("assistant", _REPLY)
    opening = _opening(tokenizer, [user])
    tool, system = _message("tool", _OTHER), _message("system", _OTHER)
    return TemplateFacts(
        template=tokenizer.chat_template,
        tool=_shows(tokenizer, [user, reply, tool]),
        system=_shows(tokenizer, [system, user]),
        repeats=_shows(tokenizer, [user, _message("user", _OTHER)]),
        turn_end=_find_turn_end(tokenizer, [user, reply]),
        opening=opening,
        opening_ids=tuple(encode_text(tokenizer, opening)),
        controls=_controls(tokenizer),
    )


def check_template(tokenizer: Any, source: Any) -> None:
    """UsageError unless the template takes a user's message and shows what it says.

    ``source``: whose template it is, in words.
    """
    try:
        text = apply_template(tokenizer, [_message("user", _USER)], True)
    except Exception as error:  # templates raise what they like
        raise UsageError(
            f"The chat template of {source} fails on a user's message ({error}); give another as "
            "model.chat_template (a jinja file)."
        ) from error
    if _USER not in text:
        raise UsageError(
            f"The chat template of {source} does not show what a user says; give another as "
            "model.chat_template (a jinja file)."
        )


def neutralised(tokenizer: Any, content: str) -> str:
    """Content in which nothing reads as a special token: ``<|end|>`` becomes ``< |end|>``.

    Whatever a database cell, a file or an agent spells, only the template opens and ends turns.
    """
    controls = template_facts(tokenizer).controls
    if controls is None:
        return content
    return controls.sub(lambda found: f"{found[0][0]} {found[0][1:]}", content)


def _controls(tokenizer: Any) -> re.Pattern[str] | None:
    known = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    # One character cannot be split, and such a token (a blank, say) is ordinary text elsewhere.
    texts = sorted((text for text in known if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of already rendered text: nothing is added, padded or cut."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    ids: list[int]
    if backend is None:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids
    # The same Rust call as the line above makes, at half of its cost: prompts are short and many.
    backend.no_padding()
    backend.no_truncation()
    ids = backend.encode(text, add_special_tokens=False).ids
    return ids


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def apply_template(tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """The template's text for messages as they are; raises whatever the template raises."""
    text: str = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
    )
    return text


def _shows(tokenizer: Any, messages: Sequence[Message]) -> bool:
    """Whether the template takes the messages and shows all their contents, in order."""
    try:
        text = apply_template(tokenizer, messages, True)
    except Exception:  # templates raise what they like
        return False
    places = [text.find(m["content"]) for m in messages]
    return -1 not in places and places == sorted(places)


def _find_turn_end(tokenizer: Any, messages: list[Message]) -> int | None:
    """The special token right after a reply: an eos if one follows, else the first there is.

    Some templates end a reply only when another message follows, so both are tried.
    """
    special = {k for k, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    followed = _after_reply(tokenizer, [*messages, _message("user", _OTHER)])
    last = _after_reply(tokenizer, messages)
    if tokenizer.eos_token_id in (*followed, *last):
        return int(tokenizer.eos_token_id)
    # Without an eos only what ends a *last* reply counts: a header token may follow others.
    found = [token for token in last if token in special]
    end = found[0] if found else tokenizer.eos_token_id
    return None if end is None else int(end)


def _after_reply(tokenizer: Any, messages: list[Message]) -> list[int]:
    try:
        text = apply_template(tokenizer, messages, False)
    except Exception:
        return []
    after = text.partition(_REPLY)[2].partition(_OTHER)[0]
    return encode_text(tokenizer, after)


def _opening(tokenizer: Any, messages: list[Message]) -> str:
    """What the generation prompt adds, if ids after it cannot depend on what is before it."""
    try:
        closed, opened = (apply_template(tokenizer, messages, flag) for flag in (False, True))
    except Exception:
        return ""
    new = opened[len(closed) :] if opened.startswith(closed) else ""
    first = encode_text(tokenizer, new)[:1]
    return new if first and first[0] in tokenizer.all_special_ids else ""
