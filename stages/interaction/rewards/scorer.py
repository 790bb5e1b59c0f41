"""A trained reward model puts its raw score on every turn of an episode."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.common.chat import dialogue_turns, recorded_turns
from stages.common.errors import HandoffError, RunError
from stages.common.manifest import read_manifest
from stages.common.rows import OFF_ACTION, MergedRow, Row, cut_row, merge_turns
from stages.interaction.rewards.mix import REWARD_MODEL
from stages.interaction.trajectory import Trajectory


class RewardModelScorer:
    """Scores of (state messages, action) by the model in a finished reward run's folder.

    Attributes: ``folder``, ``model``, ``tokenizer``; ``mean`` and ``std`` of the SFT actor's
    scores.
    """

    def __init__(self, folder: Path) -> None:
        """HandoffError if the folder is no finished reward run, its head is not trained, or its
        weights are not finite."""
        import torch

        from stages.common.models import load_reward_model, load_tokenizer

        manifest = read_manifest(folder)
        if manifest.score is None:
            raise HandoffError(
                f"{folder} records no score mean and spread; run aac train-reward again "
                "with --overwrite."
            )
        self.folder = folder
        self.mean, self.std = float(manifest.score["mean"]), float(manifest.score["std"])
        self.max_length = int(manifest.recipe.get("reward", {}).get("max_length", 1024))
        self.tokenizer: Any = load_tokenizer(folder)
        self.model: Any = load_reward_model(folder).eval().requires_grad_(False)
        for name, weight in self.model.named_parameters():
            if not torch.isfinite(weight).all():
                raise HandoffError(
                    f"{name} of the reward model {folder} is not finite; run aac train-reward "
                    "again with --overwrite."
                )
        if torch.cuda.is_available():
            self.model.to("cuda")
        self._same_tokens = False

    def listen_to(self, tokenizer: Any) -> None:
        """Tell whose tokens the episodes hold: what this model would read alike, it takes over."""
        own, other = self.tokenizer, tokenizer
        alike = own.chat_template == other.chat_template and own.is_fast and other.is_fast
        self._same_tokens = alike and _mapping(own) == _mapping(other)

    def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The same episodes with ``rewards["reward_model"]``, the raw score, on every turn.

        RunError for a score that is not finite, before anything is learnt from it.
        """
        scores = score_turns(
            self.model,
            self.tokenizer,
            trajectories,
            max_length=self.max_length,
            same_tokens=self._same_tokens,
        )
        for trajectory, row in zip(trajectories, scores, strict=True):
            self._refuse_non_finite(trajectory, row)
        return [
            trajectory.with_turns(
                [
                    replace(turn, rewards={**turn.rewards, REWARD_MODEL: score})
                    for turn, score in zip(trajectory.turns, row, strict=True)
                ]
            )
            for trajectory, row in zip(trajectories, scores, strict=True)
        ]

    def _refuse_non_finite(self, trajectory: Trajectory, scores: Sequence[float]) -> None:
        for turn, score in enumerate(scores):
            if not math.isfinite(score):
                raise RunError(
                    f"the reward model {self.folder} gives a score of {score} to turn {turn} of an "
                    f"episode of task {trajectory.task_id}; nothing was learnt from it. Train the "
                    "reward model again, or set rl.rewards.reward_model to 0."
                )


def score_turns(
    model: Any,
    tokenizer: Any,
    trajectories: Sequence[Trajectory],
    *,
    max_length: int,
    same_tokens: bool = False,
) -> list[list[float]]:
    """The raw score of each turn of each episode; all turns of a thread in one forward.

    ``same_tokens``: the episodes were played with this very tokenizer and template.
    """
    from stages.common.scores import reply_scores, scores_every_token, sequence_scores

    merge = scores_every_token(model)
    threads: list[tuple[int, MergedRow]] = []
    for episode, trajectory in enumerate(trajectories):
        turns = _turns(tokenizer, trajectory, same_tokens)
        threads += [(episode, row) for row in _threads(turns, max_length, merge)]
    rows, ends = [row.ids for _, row in threads], [_ends(row) for _, row in threads]
    if merge:
        scores = reply_scores(model, rows, [[end for _, end in found] for found in ends])
    else:
        scores = [[score] for score in sequence_scores(model, rows)]
    result = [[0.0] * len(trajectory.turns) for trajectory in trajectories]
    for (episode, _), found, values in zip(threads, ends, scores, strict=True):
        for (turn, _), value in zip(found, values, strict=True):
            result[episode][turn] = value
    return result


def _turns(
    tokenizer: Any, trajectory: Trajectory, same_tokens: bool
) -> list[tuple[list[int], list[int]]]:
    exchanges = [(turn.messages, turn.action.text) for turn in trajectory.turns]
    known = None
    if same_tokens:
        recorded = [(turn.prompt_ids, turn.action_ids) for turn in trajectory.turns]
        known = recorded_turns(tokenizer, exchanges, recorded)
    return dialogue_turns(tokenizer, exchanges) if known is None else known


def _mapping(tokenizer: Any) -> dict[str, Any]:
    """From text to ids; what calls to pad or cut have changed takes no part."""
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {k: v for k, v in content.items() if k not in ("padding", "truncation")}


def _threads(
    turns: list[tuple[list[int], list[int]]], max_length: int, merge: bool
) -> list[MergedRow]:
    """Rows with one or several turns; what is longer than the model was trained on is cut."""
    merged = merge_turns(turns) if merge else []
    if merged and max(map(len, merged)) <= max_length:
        return merged
    return [_cut(t, turn, max_length) for t, turn in enumerate(turns)]


def _cut(index: int, turn: tuple[list[int], list[int]], max_length: int) -> MergedRow:
    prompt, action = turn
    mask = (False,) * len(prompt) + (True,) * len(action)
    row = Row((*prompt, *action), mask)
    # A reply that alone is too long keeps its end: the score is read at its last token.
    row = cut_row(row, max_length) or Row(row.input_ids[-max_length:], mask[-max_length:])
    turn_index = tuple(index if chosen else OFF_ACTION for chosen in row.action_mask)
    return MergedRow(row.input_ids, row.action_mask, turn_index)


def _ends(row: MergedRow) -> list[tuple[int, int]]:
    """(turn, end of its action in the row, exclusive) of each turn in it."""
    last = {turn: k + 1 for k, turn in enumerate(row.turn_index) if turn >= 0}
    return sorted(last.items())
