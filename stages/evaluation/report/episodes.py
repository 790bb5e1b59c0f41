"""Episodes as a page shows them: plain data, turn by turn, with what the critic saw and said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.evaluation.report.picking import Picked, of_any
from stages.evaluation.report.tokens import Decoder, Pieces
from stages.evaluation.report.weighing import Paid
from stages.interaction.states.window import cut_middle
from stages.interaction.trajectory import REVIEW, Message, Trajectory, Turn

Views = Callable[[Mapping[str, Any], Trajectory], Sequence[str]]
"""(resolved recipe, episode) -> what the critic sees before each turn, and after the last."""
Shown = dict[str, Any]
JUDGED = ("value", "review", "advantage")
"""What the critic said of a turn, in ``Turn.info``."""
LONGEST = 20_000
"""Characters of one text; the middle of longer ones is left out."""
MOST_TOKENS, MOST_VIEWS = 400_000, 4_000_000
"""Prompt tokens, and characters of the critic's views, of a whole page: what comes beyond is left
out, so that a run of long episodes still fits a page."""


class Writer:
    """Makes the records of a page; what is common to its episodes is kept once."""

    def __init__(self, views: Views) -> None:
        self.pieces = Pieces()
        self._views = views
        self._tokens, self._characters = MOST_TOKENS, MOST_VIEWS

    def record(
        self, picked: Picked, recipe: Mapping[str, Any], decoder: Decoder | None, run: int
    ) -> Shown:
        """One episode of the run of this number."""
        episode, total = picked.episode, sum(sum(row.values()) for row in picked.paid)
        shown = {
            "id": f"{run}-{picked.id}",
            "run": run,
            "step": picked.step,
            "source": picked.source,
            "why": picked.why,
            "task": of_any(picked, "task_id"),
            "kind": of_any(picked, "kind"),
            "goal": _text(of_any(picked, "goal")),
            "success": bool(of_any(picked, "success", False)),
            "total": round(total, 4),
            "components": _summed(picked.paid),
        }
        if episode is None:
            return shown | {"ended": "", "opening": [], "turns": _in_words(picked)}
        return shown | {
            "ended": _ended(episode),
            "opening": [_message(m) for m in episode.initial_messages],
            "turns": self._turns(episode, picked.paid, recipe, decoder),
        }

    def _turns(
        self,
        episode: Trajectory,
        paid: Paid,
        recipe: Mapping[str, Any],
        decoder: Decoder | None,
    ) -> list[Shown]:
        views = self._views(recipe, episode) if recipe else ()
        shown, before = [], list[int]()
        for place, (turn, row) in enumerate(zip(episode.turns, paid, strict=True)):
            tokens, before = self._tokens_of(turn, decoder, before)
            view = views[place] if place < len(views) else ""
            shown.append(_turn(turn, row) | tokens | self._view(view))
        return shown

    def _tokens_of(
        self, turn: Turn, decoder: Decoder | None, before: list[int]
    ) -> tuple[Shown, list[int]]:
        """The prompt as what it shares with the last one and what follows; the action's tokens."""
        if decoder is None or not turn.prompt_ids:
            return {"state": [_message(message) for message in turn.messages]}, []
        prompt = [self.pieces.number(text) for text in decoder(turn.prompt_ids)]
        same = 0
        while same < min(len(prompt), len(before)) and prompt[same] == before[same]:
            same += 1
        if len(prompt) - same > self._tokens:
            return {"left_out": True}, []
        self._tokens -= len(prompt) - same
        tokens = {
            "same": same,
            "prompt": prompt[same:],
            "action": [self.pieces.number(text) for text in decoder(turn.action_ids)],
            "logprobs": [round(value, 3) for value in turn.logprobs],
        }
        return tokens, prompt

    def _view(self, view: str) -> Shown:
        text = _text(view)
        if not text or len(text) > self._characters:
            return {}
        self._characters -= len(text)
        return {"view": text}


def _turn(turn: Turn, paid: Mapping[str, float]) -> Shown:
    judged = {n: round(float(turn.info[n]), 4) for n in JUDGED if n in turn.info}
    return {
        "said": _text(turn.action.text),
        "error": _text(turn.action.error or str(turn.info.get("tool_error") or "")),
        "seen": [_message(message) for message in turn.observation],
        "paid": _rounded(paid),
        "words": _text(str(turn.produced.get(REVIEW, ""))),
        **judged,
    }


def _in_words(picked: Picked) -> list[Shown]:
    """The turns of an episode of which only words were kept."""
    return [
        {
            "said": _text(turn["said"]),
            "error": "",
            "seen": [{"role": "result", "content": _text(text)} for text in turn["seen"]],
            "paid": _rounded(paid),
            "words": "",
        }
        for turn, paid in zip(picked.row["turns"], picked.paid, strict=True)
    ]


def _ended(episode: Trajectory) -> str:
    if episode.out_of_budget:
        return "ran into a limit of turns or tokens"
    if episode.truncated and not episode.terminated:
        return "was cut by the machinery"
    return ""


def _message(message: Message) -> Shown:
    content = message.get("content") or ""
    return {"role": str(message.get("role", "")), "content": _text(str(content))}


def _summed(paid: Paid) -> dict[str, float]:
    names = dict.fromkeys(name for row in paid for name in row)
    return _rounded({name: sum(row.get(name, 0.0) for row in paid) for name in names})


def _rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in row.items() if round(value, 4)}


def _text(text: str) -> str:
    return cut_middle(str(text), LONGEST)
