"""Supervision: who has to think again, what is taken, what it costs; against hand-worked cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stages.interaction.actions import parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments.sql import SqlOptions
from stages.interaction.generation import Generation, Request
from stages.interaction.rewards.mix import REWARD_MODEL
from stages.interaction.supervision import (
    RECONSIDER,
    Screening,
    SupervisedPolicy,
    by_log_prob,
    by_majority,
    by_reward_model,
    proposal,
)
from stages.interaction.trajectory import Trajectory, Turn

START = Trajectory("t", "k", "g", "goal", max_turns=4)
HELLO = {"role": "user", "content": "hello"}


class Numbers:
    """Proposes the next of its texts for each request, and remembers what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[tuple[Request, bool]]()

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        self.asked += [(request, greedy) for request in requests]
        made = [self.texts.pop(0) for _ in requests]
        return [Generation([1], [2] * len(t), [-0.5] * len(t), t) for t in made]


def by_number(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
    return [[float(p.turns[-1].action.text) for p in group] for group in groups]


def asking(*episodes: int) -> list[Request]:
    return [Request([HELLO], (), (7, 0, e, 0), so_far=lambda: START) for e in episodes]


def said(replies: Sequence[Generation]) -> list[str]:
    return [reply.text for reply in replies]


def test_only_weak_proposals_are_made_again_and_the_best_is_taken():
    """Episode 0 passes at once; episode 1 needs two retries, of which the second passes."""
    policy = Numbers("5", "1", "0", "4")
    watched = SupervisedPolicy(policy, by_number, Screening(retries=3, threshold=3.0))
    assert said(watched.generate(asking(0, 1))) == ["5", "4"]
    assert [request.key[2] % 1_000_003 for request, _ in policy.asked] == [0, 1, 1 + 0, 1]
    assert len({request.key for request, _ in policy.asked}) == 4
    assert watched.cost.figures() == {"proposals_per_turn": 2.0, "tokens_ratio": 2.0}


def test_when_none_passes_the_best_so_far_is_taken():
    watched = SupervisedPolicy(Numbers("1", "2", "0"), by_number, Screening(2, threshold=3.0))
    assert said(watched.generate(asking(0))) == ["2"]


def test_without_a_threshold_every_retry_is_made_and_the_earliest_of_equals_wins():
    policy = Numbers("2", "1", "2.0")
    watched = SupervisedPolicy(policy, by_number, Screening(retries=2))
    assert said(watched.generate(asking(0))) == ["2"]
    assert len(policy.asked) == 3


def test_retries_are_sampled_even_where_the_first_is_greedy():
    policy = Numbers("1", "2")
    SupervisedPolicy(policy, by_number, Screening(1)).generate(asking(0), greedy=True)
    assert [greedy for _, greedy in policy.asked] == [True, False]


def test_the_agent_is_told_to_reconsider_only_if_asked_for():
    for told in (False, True):
        policy = Numbers("1", "2")
        SupervisedPolicy(policy, by_number, Screening(1, None, told)).generate(asking(0))
        first, again = (list(request.messages) for request, _ in policy.asked)
        assert first == [HELLO]
        assert again == ([HELLO, {"role": "user", "content": RECONSIDER}] if told else [HELLO])


def test_a_reply_for_which_there_was_no_room_is_not_asked_for_again():
    class Full(Numbers):
        def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> Any:
            super().generate(requests)
            return [Generation([1], overflow=True) for _ in requests]

    policy = Full("1")
    watched = SupervisedPolicy(policy, by_log_prob, Screening(3))
    assert watched.generate(asking(0))[0].overflow
    assert len(policy.asked) == 1


def of(*actions: str, logprobs: Sequence[float] = ()) -> Trajectory:
    turns = [Turn(k, (), parse_action(text), logprobs=tuple(logprobs))
             for k, text in enumerate(actions)]  # fmt: skip
    return START.with_turns(turns)


def test_rankings_by_log_prob_and_majority():
    sure, unsure = of("a", logprobs=(-0.1, -0.3)), of("b", logprobs=(-1.0,))
    assert by_log_prob([[sure, unsure], [of("")]]) == [pytest.approx([-0.2, -1.0]), [0.0]]
    assert by_majority([[of("x"), of("y"), of(" y ")]]) == [[1.0, 2.0, 2.0]]


def test_equal_calls_are_one_vote_however_they_are_spelled():
    one = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": 2}}</tool_call>'
    two = '<tool_call>{"name": "f", "arguments": {"b": 2,  "a": 1}}</tool_call>'
    assert parse_action(one).calls, "the parser reads this form"
    assert by_majority([[of(one), of(two), of("else")]]) == [[2.0, 2.0, 1.0]]


def test_the_reward_model_scores_the_last_turn_alone():
    class Scorer:
        def score(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
            assert all(len(e.turns) == 1 for e in episodes)
            return [
                e.with_turns([Turn(0, (), t.action, rewards={REWARD_MODEL: float(t.action.text)})
                              for t in e.turns])
                for e in episodes
            ]  # fmt: skip

    assert by_reward_model(Scorer())([[of("9", "1"), of("9", "2")], [of("3")]]) == [[1, 2], [3]]


def test_a_proposal_is_the_episode_so_far_with_the_reply_and_nothing_privileged():
    """In a real rollout: the judge sees the turns before, without facts, and the new one last."""
    seen: list[Trajectory] = []

    def judge(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
        seen.extend(p for group in groups for p in group)
        return [[0.0] * len(group) for group in groups]

    class Lists:
        def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> Any:
            return [Generation(text="<list_tables>") for _ in requests]

    arena = Arena(SqlOptions(max_turns=3), {"tool_prompt": "none", "checklist": True})
    [task] = arena.tasks("test", 1, 0)
    [played] = arena.play([task], SupervisedPolicy(Lists(), judge, Screening(0)), label="")
    assert any(played.privileged_before(t) for t in range(len(played.turns)))
    assert [len(p.turns) for p in seen] == [1, 2, 3]
    for t, proposed in enumerate(seen):
        assert not proposed.initial_privileged
        assert all(not turn.privileged for turn in proposed.turns)
        assert proposed.turns[-1].messages == played.turns[t].messages
        assert [u.observation for u in proposed.turns[:-1]] == [
            u.observation for u in played.turns[:t]
        ]
        assert not proposed.turns[-1].observation


def test_a_request_without_its_episode_cannot_be_judged():
    with pytest.raises(ValueError, match="tells of its episode"):
        proposal(Request([HELLO], (), (0, 0, 0, 0)), Generation(text="x"))
