"""Messages to token ids and back to training rows, with any model's own chat template.

Prompts are what the template renders with the generation prompt; an action is its text and
the stop token. The next prompt is made by concatenating token ids, so that what is trained
on is what was sampled. Works without generation markers in the template: replies are never
looked for in rendered text, they are put there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from stages.common.errors import UsageError
from stages.common.rows import OFF_ACTION, Row, action_spans, cut_row, merge_turns
from stages.common.template import apply_template, encode_text, neutralised, template_facts

Message = dict[str, Any]


def render(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """The text the template makes of ``messages``. UsageError if the template refuses them."""
    said = tuple((m["role"], m.get("content") or "") for m in messages)
    return _rendered(tokenizer, tokenizer.chat_template, said, add_generation_prompt)


@lru_cache(maxsize=512)  # a turn's prompt is counted, shown, and part of the next one's
def _rendered(
    tokenizer: Any, _template: Any, said: tuple[tuple[str, str], ...], add_generation_prompt: bool
) -> str:
    adapted = adapt_roles(tokenizer, [_message(*one) for one in said])
    try:
        return apply_template(tokenizer, adapted, add_generation_prompt)
    except Exception as error:
        roles = ", ".join(str(m["role"]) for m in adapted)
        raise UsageError(
            f"The chat template refuses messages with the roles {roles} ({error}); "
            "give another template as model.chat_template."
        ) from error


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of the prompt for the next action: rendered with the generation prompt."""
    return encode_text(tokenizer, render(tokenizer, messages, add_generation_prompt=True))


def encode_action(tokenizer: Any, messages: Sequence[Message], text: str) -> list[int]:
    """Ids of an action's text as it stands after the prompt of ``messages``, and the stop token."""
    shown = render(tokenizer, messages, add_generation_prompt=True)
    return _action_ids(tokenizer, shown, text)


def extend_prompt(
    tokenizer: Any,
    *,
    previous_messages: Sequence[Message],
    previous_ids: Sequence[int],
    action_text: str,
    action_ids: Sequence[int],
    messages: Sequence[Message],
) -> list[int] | None:
    """The next prompt by token concatenation: previous_ids + action_ids + the new text's ids.

    None if ``messages`` does not extend ``previous_messages`` and the action, or if the
    template renders them differently once more messages follow: the caller encodes afresh.
    """
    if not _extends(previous_messages, action_text, messages):
        return None
    shown = render(tokenizer, previous_messages, add_generation_prompt=True)
    whole = render(tokenizer, messages, add_generation_prompt=True)
    before = shown + neutralised(tokenizer, action_text)
    new = _new_ids(tokenizer, before, action_text, action_ids, whole)
    return None if new is None else [*previous_ids, *action_ids, *new]


def stop_ids(tokenizer: Any, model_generation_config: Any = None) -> tuple[int, ...]:
    """Every token that ends an action; the first is the one the template writes.

    UsageError if there is none: a model trained so would never stop.
    """
    ends = getattr(model_generation_config, "eos_token_id", None)
    known = [turn_end(tokenizer), tokenizer.eos_token_id]
    known += ends if isinstance(ends, (list, tuple)) else [ends]
    return tuple(dict.fromkeys(int(end) for end in known if end is not None))


def turn_end(tokenizer: Any) -> int:
    """The token the template ends an assistant message with; UsageError if there is none."""
    end = template_facts(tokenizer).turn_end
    if end is None:
        raise UsageError(
            "The tokenizer has no eos token and its chat template ends assistant messages with "
            "no special token, so the model could not learn to stop: set eos_token."
        )
    return end


def tool_role(tokenizer: Any) -> Literal["tool", "user"]:
    """The role under which the template shows a tool's result."""
    return "tool" if template_facts(tokenizer).tool else "user"


def adapt_roles(tokenizer: Any, messages: Sequence[Message]) -> list[Message]:
    """The same messages in roles that the template renders.

    Tool results become user messages where the template has no tool role; a refused system
    message is folded into the first user message; neighbours of one role are joined where
    the template wants roles to alternate. Special tokens spelled out in a content are broken up.
    """
    facts = template_facts(tokenizer)
    plain = [
        {"role": m["role"], "content": neutralised(tokenizer, m.get("content") or "")}
        for m in messages
    ]
    if not facts.tool:
        plain = [m | {"role": "user"} if m["role"] == "tool" else m for m in plain]
    if not facts.system:
        plain = _fold_system(plain)
    return plain if facts.repeats else _join_neighbours(plain)


def dialogue_turns(
    tokenizer: Any, exchanges: Iterable[tuple[Sequence[Message], str]]
) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, action ids) of each (messages shown, reply), concatenated where possible."""
    turns: list[tuple[list[int], list[int]]] = []
    before: tuple[Sequence[Message], str, str] | None = None
    for messages, reply in exchanges:
        text = render(tokenizer, messages, add_generation_prompt=True)
        new = None
        if before is not None and _extends(before[0], before[1], messages):
            shown = before[2] + neutralised(tokenizer, before[1])
            new = _new_ids(tokenizer, shown, before[1], turns[-1][1], text)
        known = [] if new is None else [*turns[-1][0], *turns[-1][1]]
        prompt = [*known, *(encode_text(tokenizer, text) if new is None else new)]
        turns.append((prompt, _action_ids(tokenizer, text, reply)))
        before = (messages, reply, text)
    return turns


def recorded_turns(
    tokenizer: Any,
    exchanges: Iterable[tuple[Sequence[Message], str]],
    recorded: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[tuple[list[int], list[int]]] | None:
    """What ``dialogue_turns`` would give, taken from the (prompt ids, action ids) by which this
    very tokenizer and template showed the dialogue when it was played.

    None where the two may differ: a reply was sampled in other tokens than its text has, or was
    cut off, or a prompt was not continued though its messages were.
    """
    facts = template_facts(tokenizer)
    before: tuple[Sequence[Message], str] | None = None
    known: list[int] = []
    for (messages, reply), (prompt, action) in zip(exchanges, recorded, strict=True):
        if not facts.opening or not prompt:
            return None
        if before and _extends(*before, messages) and list(prompt[: len(known)]) != known:
            return None
        if list(action) != _action_ids(tokenizer, facts.opening, reply):
            return None
        before, known = (messages, reply), [*prompt, *action]
    return [(list(prompt), list(action)) for prompt, action in recorded]


def exchange_rows(
    tokenizer: Any,
    exchanges: Iterable[tuple[Sequence[Message], str]],
    unlearned: Container[int] = (),
) -> list[Row]:
    """Training rows of one dialogue given as (messages shown, reply to be learned).

    One row where every state extends the one before and the template renders earlier replies as
    they were given; otherwise a row wherever the thread breaks. Nothing is cut. ``unlearned``:
    places of exchanges whose replies are shown to those after them, and not learned.
    """
    merged = merge_turns(dialogue_turns(tokenizer, exchanges))
    rows = [
        Row(m.ids, tuple(t != OFF_ACTION and t not in unlearned for t in m.turn_index))
        for m in merged
    ]
    return [row for row in rows if any(row.action_mask)]


def dialogue_exchanges(
    messages: Sequence[Message], *, last_reply_only: bool = False
) -> list[tuple[Sequence[Message], str]]:
    """(what comes before, reply) for each assistant message; UsageError if there is none."""
    places = [k for k, m in enumerate(messages) if m["role"] == "assistant"]
    if not places:
        raise UsageError("A dialogue has no assistant message, so there is nothing to learn.")
    places = places[-1:] if last_reply_only else places
    return [(messages[:k], messages[k]["content"] or "") for k in places]


def dialogue_rows(
    tokenizer: Any,
    messages: Sequence[Message],
    max_length: int,
    *,
    last_reply_only: bool = False,
) -> list[Row]:
    """Training rows of one dialogue: every assistant message is learned, with its stop token.

    Longer rows lose the middle of their history, never the last reply. UsageError: no reply, or
    a reply that cannot fit.
    """
    exchanges = dialogue_exchanges(messages, last_reply_only=last_reply_only)
    rows = [cut_row(row, max_length) for row in exchange_rows(tokenizer, exchanges)]
    if None in rows:
        raise UsageError(f"A reply alone is longer than max_length ({max_length} tokens).")
    return [row for row in rows if row is not None]


def dialogue_row(tokenizer: Any, messages: Sequence[Message], max_length: int) -> Row:
    """The row that ends with the dialogue's last reply (see ``dialogue_rows``)."""
    return dialogue_rows(tokenizer, messages, max_length)[-1]


def check_stop_token(rows: Iterable[Row], stops: Sequence[int]) -> None:
    """UsageError unless every learned reply ends with a stop token inside the loss."""
    for number, row in enumerate(rows, start=1):
        for _, end in action_spans(row.action_mask):
            if row.input_ids[end - 1] not in stops:
                raise UsageError(
                    f"Row {number} has a reply without a stop token in its loss (its last token "
                    f"is {row.input_ids[end - 1]}, expected one of {tuple(stops)}), so the model "
                    "would never learn to stop: check the tokenizer's eos_token and template."
                )


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _action_ids(tokenizer: Any, shown: str, text: str) -> list[int]:
    """Ids of ``text`` after the rendered prompt ``shown``, and the stop token."""
    text = neutralised(tokenizer, text)
    facts = template_facts(tokenizer)
    if facts.opening and shown.endswith(facts.opening):
        context, prompt = facts.opening, list(facts.opening_ids)
    else:
        context, prompt = shown, encode_text(tokenizer, shown)
    joint = encode_text(tokenizer, context + text)
    prefix_kept = joint[: len(prompt)] == prompt
    ids = joint[len(prompt) :] if prefix_kept else encode_text(tokenizer, text)
    return [*ids, turn_end(tokenizer)]


def _extends(previous: Sequence[Message], action_text: str, messages: Sequence[Message]) -> bool:
    """Whether ``messages`` are ``previous``, then the action, then more."""
    count = len(previous)
    if len(messages) <= count or list(messages[:count]) != list(previous):
        return False
    reply = messages[count]
    return bool(reply["role"] == "assistant" and reply["content"] == action_text)


def _new_ids(
    tokenizer: Any, before: str, action_text: str, action_ids: Sequence[int], whole: str
) -> list[int] | None:
    """Ids of what ``whole`` adds to ``before`` (ends with the action), less the stop sampled."""
    if not whole.startswith(before):
        return None
    rest = whole[len(before) :]
    if not action_ids or _decode(tokenizer, action_ids) == action_text:
        return encode_text(tokenizer, rest)  # cut off: the template's own stop is new text
    last = int(action_ids[-1])
    stop = _decode(tokenizer, [last])
    rest = rest if rest.startswith(stop) else rest.lstrip()  # some templates put a blank first
    if not rest.startswith(stop):
        return None
    ids = encode_text(tokenizer, rest)  # with the stop: tokenizers may look at what is before
    return ids[1:] if ids[:1] == [last] else None


def _fold_system(messages: list[Message]) -> list[Message]:
    texts = [m["content"] for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    if not texts:
        return rest
    if not rest or rest[0]["role"] != "user":
        return [_message("user", "\n\n".join(texts)), *rest]
    return [_message("user", "\n\n".join([*texts, rest[0]["content"]])), *rest[1:]]


def _join_neighbours(messages: list[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            content = f"{joined[-1]['content']}\n{message['content']}"
            joined[-1] = _message(message["role"], content)
        else:
            joined.append(message)
    return joined


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
