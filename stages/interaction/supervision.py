"""Supervision at run time (B1): a judge scores what the actor proposes before it is done.

The actor's proposal is scored together with the episode so far, without privileged facts. While
the best score of a turn is below a threshold the actor samples again, up to a number of retries;
the best proposal is taken. The judge may be a trained critic (``stages.rl.critic.judge``), or one
of the rankings of this file, which are what such a critic has to beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stages.interaction.actions import parse_action
from stages.interaction.generation import Generation, Policy, Request
from stages.interaction.rewards.mix import REWARD_MODEL
from stages.interaction.trajectory import Trajectory, Turn

Judge = Callable[[Sequence[Sequence[Trajectory]]], list[list[float]]]
"""Proposals of each state -> their scores. A proposal is the episode so far with the proposed
action as its last turn, to which nothing has come back yet."""

RETRY_KEYS = 1_000_003
"""Added to the episode's number in a retry's key, so that it draws other numbers."""
RECONSIDER = "Reconsider: your last proposal looked weak. Try another way."


@dataclass(frozen=True)
class Screening:
    """When the actor has to think again."""

    retries: int = 3
    """Most proposals of a turn after the first."""
    threshold: float | None = None
    """A proposal that scores at least this is good enough; none: always all retries."""
    reconsider: bool = False
    """Retries are told that the proposal looked weak, in a message of the user's."""


@dataclass
class Cost:
    """What supervision took."""

    turns: int = 0
    proposals: int = 0
    tokens: int = 0
    """Sampled in all."""
    kept_tokens: int = 0
    """Of the proposals that were taken."""

    def figures(self) -> dict[str, float]:
        """Proposals per turn, and tokens sampled in all over tokens that were used."""
        return {
            "proposals_per_turn": self.proposals / max(self.turns, 1),
            "tokens_ratio": self.tokens / max(self.kept_tokens, 1),
        }


@dataclass
class SupervisedPolicy:
    """A policy whose proposals have to pass a judge."""

    policy: Policy
    judge: Judge
    screening: Screening = field(default_factory=Screening)
    cost: Cost = field(default_factory=Cost)

    def at(self, temperature: float, max_new_tokens: int | None = None) -> SupervisedPolicy:
        """The same supervision over the policy sampled otherwise, where it can be."""
        policy: Any = self.policy
        return replace(self, policy=policy.at(temperature, max_new_tokens))

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """The best proposal for each request; retries are sampled also where ``greedy``."""
        groups = [_Group(r, g) for r, g in self._proposed(requests, greedy=greedy)]
        for attempt in range(self.screening.retries):
            weak = self._weak(groups)
            again = [self._again(group.request, attempt + 1) for group in weak]
            for group, (_, reply) in zip(weak, self._proposed(again), strict=True):
                group.replies.append(reply)
        self._score(groups)
        chosen = [group.best() for group in groups]
        self.cost.turns += len(chosen)
        self.cost.kept_tokens += sum(len(reply.ids) for reply in chosen)
        return chosen

    def _proposed(
        self, requests: Sequence[Request], *, greedy: bool = False
    ) -> list[tuple[Request, Generation]]:
        if not requests:
            return []
        made = self.policy.generate(requests, greedy=greedy)
        self.cost.proposals += len(made)
        self.cost.tokens += sum(len(reply.ids) for reply in made)
        return list(zip(requests, made, strict=True))

    def _weak(self, groups: Sequence[_Group]) -> list[_Group]:
        """Those to be asked again; without a threshold nobody needs to be scored for that."""
        asked = [group for group in groups if not group.first.overflow]
        threshold = self.screening.threshold
        if threshold is None:
            return asked
        self._score(asked)
        return [group for group in asked if max(group.scores) < threshold]

    def _again(self, request: Request, attempt: int) -> Request:
        *before, episode, turn = request.key
        key = (*before, episode + attempt * RETRY_KEYS, turn)
        if not self.screening.reconsider:
            return replace(request, key=key)
        told = [*request.messages, {"role": "user", "content": RECONSIDER}]
        return replace(request, key=key, messages=told)

    def _score(self, groups: Sequence[_Group]) -> None:
        """Score the groups that have grown since they were last scored."""
        grown = [group for group in groups if len(group.scores) < len(group.replies)]
        if grown:
            scored = self.judge([group.proposals() for group in grown])
            for group, scores in zip(grown, scored, strict=True):
                group.scores = scores


@dataclass
class _Group:
    """The proposals of one state."""

    request: Request
    first: Generation
    replies: list[Generation] = field(init=False)
    scores: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replies = [self.first]

    def proposals(self) -> list[Trajectory]:
        return [proposal(self.request, reply) for reply in self.replies]

    def best(self) -> Generation:
        """The highest score, the earliest of equals."""
        return self.replies[self.scores.index(max(self.scores))]


def proposal(request: Request, reply: Generation) -> Trajectory:
    """The episode so far with a reply as its last turn."""
    if request.so_far is None:
        raise ValueError("proposals can be judged only where the request tells of its episode")
    episode = request.so_far()
    turn = Turn(
        index=len(episode.turns),
        messages=tuple(request.messages),
        action=parse_action(reply.text, request.tools),
        prompt_ids=tuple(reply.prompt_ids),
        action_ids=tuple(reply.ids),
        logprobs=tuple(reply.logprobs),
    )
    return episode.with_turns((*episode.turns, turn))


def by_log_prob(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
    """A judge: the actor's own mean log-prob per token."""
    return [[_mean(p.turns[-1].logprobs) for p in group] for group in groups]


def by_majority(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
    """A judge: how many proposals of the state do the same (self-consistency, arXiv:2203.11171).

    Calls are compared by tool and arguments, plain words as they stand.
    """
    scores = []
    for group in groups:
        acts = [_act(p.turns[-1]) for p in group]
        votes = Counter(acts)
        scores.append([float(votes[act]) for act in acts])
    return scores


def by_reward_model(scorer: Any) -> Judge:
    """A judge: the reward model's score of the action in its state.

    ``scorer``: a ``RewardModelScorer``.
    """

    def judged(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
        flat = [p.with_turns(p.turns[-1:]) for group in groups for p in group]
        scores = iter([float(e.turns[-1].rewards[REWARD_MODEL]) for e in scorer.score(flat)])
        return [[next(scores) for _ in group] for group in groups]

    return judged


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _act(turn: Turn) -> str:
    calls = turn.action.calls
    return "; ".join(call.key() for call in calls) if calls else turn.action.text.strip()
