"""From requests to prompt ids, and from sampled ids to replies, whichever engine samples them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.common.chat import encode_prompt, extend_prompt
from stages.interaction.generation import Generation, Request


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine drew for one prompt."""

    ids: list[int]
    """Sampled ids, with the stop token."""
    logprobs: list[float]


def prompt_ids(tokenizer: Any, request: Request) -> list[int]:
    """The state's token ids; what was sampled earlier stays as it was sampled."""
    last = request.previous
    if last is not None and last.prompt_ids:
        ids = extend_prompt(
            tokenizer,
            previous_messages=last.messages,
            previous_ids=last.prompt_ids,
            action_text=last.action.text,
            action_ids=last.action_ids,
            messages=request.messages,
        )
        # The same text sampled in shorter tokens may be longer than what the state counted.
        if ids is not None and len(ids) <= (request.max_tokens or len(ids)):
            return ids
    return encode_prompt(tokenizer, request.messages)


def replies(
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    sampled: Sequence[Sampled],
    *,
    stops: Sequence[int],
) -> list[Generation]:
    """One reply per prompt: its ids as they were sampled, its text without the stop token."""
    ends = [row.ids[-1] in stops for row in sampled]
    bare = [row.ids[:-1] if end else row.ids for row, end in zip(sampled, ends, strict=True)]
    texts = tokenizer.batch_decode(
        bare, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    rows = zip(prompts, sampled, texts, ends, strict=True)
    return [Generation(prompt, s.ids, s.logprobs, text, end) for prompt, s, text, end in rows]
