"""A language model that says one message: behind an OpenAI-compatible endpoint, or in a folder.

It plays customers and judges. Plain data and standard library; a local folder loads torch late.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.interaction.generation import Policy, Request
from stages.interaction.trajectory import Message

LONGEST_ANSWER = 1_000_000
"""Bytes of an endpoint's answer that are read."""


class SpeakerOptions(BaseModel):
    """A language model that speaks for somebody: behind an endpoint or in a local folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(
        None, description="Base address of an OpenAI-compatible server, http://host:port/v1."
    )
    model: str = Field("", description="Name of the model at the endpoint.")
    folder: Path | None = Field(None, description="A Hugging Face folder, in place of an endpoint.")
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="Environment variable that holds the endpoint's key, if any."
    )
    temperature: float = Field(0.7, ge=0, le=2, description="Sampling temperature; 0: greedy.")
    max_tokens: int = Field(64, ge=1, le=4096, description="Longest message in tokens.")
    time_limit_s: float = Field(60.0, gt=0, description="Seconds the endpoint may take.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.endpoint is None) == (self.folder is None):
            raise ValueError("give either endpoint (and model) or folder, and not both")
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} must begin with http:// or https://")
        return self


class SickSimulator(RuntimeError):
    """The simulated customer or judge failed: the episode is labelled, not held against the agent.

    The message says how: it fell out of its role, repeats itself, said nothing, ...
    """


class Speaker(Protocol):
    """Whoever answers a conversation with one message."""

    def say(self, messages: Sequence[Message], *, key: str) -> str:
        """The next message; equal keys give equal messages where the model allows it."""
        ...


class EndpointSpeaker:
    """Speaks through ``POST {endpoint}/chat/completions``."""

    def __init__(self, options: SpeakerOptions) -> None:
        self._options = options

    def say(self, messages: Sequence[Message], *, key: str) -> str:
        """The first choice's text. SickSimulator if the endpoint gives none in time."""
        options = self._options
        body = {
            "model": options.model,
            "messages": list(messages),
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "seed": _number(key),
        }
        try:
            answer = self._post(json.dumps(body).encode())
            return str(answer["choices"][0]["message"]["content"] or "")
        except (OSError, ValueError, KeyError, IndexError, TypeError) as fault:
            why = f"{type(fault).__name__}: {fault}"
            raise SickSimulator(
                f"the endpoint {options.endpoint} gave no message ({why}); check that it serves"
                " /chat/completions, the model's name and the key."
            ) from None

    def _post(self, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if secret := os.environ.get(self._options.api_key_env):
            headers["Authorization"] = f"Bearer {secret}"
        address = f"{str(self._options.endpoint).rstrip('/')}/chat/completions"
        request = urllib.request.Request(address, body, headers)
        with urllib.request.urlopen(request, timeout=self._options.time_limit_s) as answer:
            return json.loads(answer.read(LONGEST_ANSWER))


class FolderSpeaker:
    """Speaks with a causal model of a Hugging Face folder, loaded once per process."""

    def __init__(self, options: SpeakerOptions) -> None:
        self._options = options

    def say(self, messages: Sequence[Message], *, key: str) -> str:
        """The model's message, sampled with numbers keyed by ``key``; "" if nothing fits in."""
        options = self._options
        policy = _policy(str(options.folder), options.temperature or 1.0, options.max_tokens)
        request = Request(list(messages), (), (_number(key), 0))
        return policy.generate([request], greedy=options.temperature == 0)[0].text


def make_speaker(options: SpeakerOptions | None) -> Speaker:
    """The speaker these options ask for. ValueError without options."""
    if options is None:
        raise ValueError("a speaker needs options: an endpoint or a folder")
    return FolderSpeaker(options) if options.folder is not None else EndpointSpeaker(options)


@lru_cache(maxsize=4)
def _policy(folder: str, temperature: float, max_tokens: int) -> Policy:
    from stages.common.libraries import quiet_libraries
    from stages.common.models import load_actor, load_tokenizer
    from stages.interaction.native import NativePolicy

    with quiet_libraries(None):
        tokenizer = load_tokenizer(folder)
        model = load_actor(folder, tokenizer=tokenizer).eval()
    return NativePolicy(
        model, tokenizer, temperature=temperature, max_new_tokens=max_tokens, reuse=False
    )


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
