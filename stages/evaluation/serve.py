"""``aac serve``: a trained agent behind an OpenAI-compatible endpoint.

What a program sends is shown to the agent through the state processor it was trained with, and its
calls are read by the parser it was trained with.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stages.common.console import say
from stages.common.errors import UsageError
from stages.common.manifest import read_manifest
from stages.common.run_folder import MANIFEST
from stages.evaluation.supervise import Supervise, unsupervised
from stages.interaction.actions import parse_action
from stages.interaction.endpoint.protocol import ChatReply, ChatRequest, reply_message
from stages.interaction.endpoint.server import chat_app, make_server
from stages.interaction.environments.base import Reset
from stages.interaction.generation import Request
from stages.interaction.player import LoadedActor, load_player
from stages.interaction.states import StateOptions, StateOverflow, build_state
from stages.interaction.trajectory import Action, Message, Trajectory, Turn
from stages.recipe.models import Recipe

GREEDY = 1e-6
"""Temperatures up to this are greedy."""


class ServedAgent:
    """Answers chat requests, one at a time."""

    def __init__(self, folder: Path, supervise: Supervise = unsupervised) -> None:
        """UsageError for a folder that is no finished run, or an agent that needs its critic."""
        if not (folder / MANIFEST).is_file():
            raise UsageError(
                f"{folder} holds no {MANIFEST}, so nothing says how its agent was trained; give "
                "the folder of a finished sft or rl run."
            )
        recipe = Recipe.model_validate(read_manifest(folder).recipe)
        # The folder has the template it was trained with; the recipe's file may be gone.
        model = SimpleNamespace(chat_template=None, dtype=recipe.model.dtype)
        self._usual = recipe.evaluation_sampling
        self._actor: LoadedActor = load_player(
            folder, model=model, sampling=self._usual, state=recipe.state
        )
        if StateOptions.of(self._actor.state).review == "words":
            raise UsageError(
                f"{folder} is shown its critic's reviews (state.review = words), which a program's "
                "conversation does not hold; play it by aac chat or eval."
            )
        self._limit = int(getattr(recipe.environment, "max_turns", 0))
        self._actor = supervise(self._actor)
        if self._actor.reviewer is not None:
            raise UsageError(
                "a program's conversation does not hold the critic's reviews; serve with "
                "--supervise-mode screen, or play the agent by aac chat or eval."
            )
        self._lock, self._numbers = threading.Lock(), count()

    async def answer(self, episode: str, request: ChatRequest) -> tuple[ChatReply, dict[str, Any]]:
        """The agent's reply. UsageError if the conversation does not fit its state."""
        reply = await asyncio.to_thread(self.reply, request)
        return reply, reply_message(reply)

    def reply(self, request: ChatRequest) -> ChatReply:
        """One reply; greedy at temperature 0, sampled as in training unless asked otherwise."""
        with self._lock:
            greedy = request.temperature is not None and request.temperature <= GREEDY
            policy = self._policy(request, greedy)
            key = (request.seed or 0, 0 if request.seed is not None else next(self._numbers), 0, 0)
            shown, so_far = self.shown(request)
            asked = Request(shown, request.tools, key, so_far=lambda: so_far)
            (made,) = policy.generate([asked], greedy=greedy)
        if made.overflow:
            raise UsageError("the conversation leaves no room for a reply in the model's context.")
        action = parse_action(made.text, request.tools) if request.tools else Action(made.text)
        return ChatReply(action, made.stopped, (len(made.prompt_ids), len(made.ids)))

    def shown(self, request: ChatRequest) -> tuple[list[Message], Trajectory]:
        """The state, what the agent was shown in training for such a history; and the history."""
        head, turns = conversation(request.messages)
        state = build_state(self._actor.state, self._actor.count_tokens)
        goal = next((str(m["content"]) for m in head if m["role"] == "user"), "")
        record = Trajectory("", "", "", goal, tuple(head), request.tools, max_turns=self._limit)
        state.reset(Reset(tuple(head), request.tools, goal))
        try:
            for turn in turns:
                state.render()
                state.update(turn)
            return state.render(), record.with_turns(turns)
        except StateOverflow as overflow:
            raise UsageError(
                f"the conversation does not fit the agent's state: {overflow}."
            ) from None

    def _policy(self, request: ChatRequest, greedy: bool) -> Any:
        """As in training, but for what the request asks otherwise."""
        temperature, limit = self._usual.temperature, self._usual.max_new_tokens
        if request.temperature is not None and not greedy:
            temperature = request.temperature
        wanted = temperature, request.max_tokens or limit
        policy: Any = self._actor.policy
        usual = self._usual.temperature, limit
        return policy if wanted == usual else policy.at(*wanted)


def conversation(messages: Sequence[Message]) -> tuple[list[Message], list[Turn]]:
    """(what came before the first reply, a turn per reply) of a flat list of messages."""
    replies = [k for k, m in enumerate(messages) if m["role"] == "assistant"]
    head = list(messages[: replies[0]] if replies else messages)
    ends = [*replies[1:], len(messages)] if replies else []
    turns = [
        Turn(
            index=index,
            messages=(),
            action=parse_action(str(messages[k]["content"])),
            observation=tuple(messages[k + 1 : end]),
        )
        for index, (k, end) in enumerate(zip(replies, ends, strict=True))
    ]
    return head, turns


def serve_command(
    folder: Path, *, host: str, port: int, supervise: Supervise = unsupervised
) -> dict[str, Any]:
    """Serve until interrupted; returns where it was. UsageError for a folder or port that is no
    good."""
    agent = ServedAgent(folder, supervise)
    server = make_server(chat_app(agent.answer, model=str(folder)), host=host, port=port)
    say(f"serving {folder} at http://{host}:{port}/v1; an interrupt ends it.")
    try:
        server.run()
    except SystemExit:
        raise UsageError(f"{host}:{port} cannot be opened; choose another --port.") from None
    return {"run": str(folder), "host": host, "port": port}
