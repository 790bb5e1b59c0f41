"""Episodes as records: limits, faults, order, and what may depend on what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stages.common.errors import UsageError
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments.base import Reset, Task
from stages.interaction.generation import Generation, Request
from stages.interaction.rollout import collect
from stages.interaction.states import StateProcessor, build_state
from stages.interaction.trajectory import Trajectory
from tests.interaction.toys import BoxEnvironment, Script, answer, count_words, look, task


def make_state() -> StateProcessor:
    return build_state({}, count_words)


def play(tasks: Sequence[Task], policy: object, **options: object) -> list[Trajectory]:
    defaults = {"make_environment": BoxEnvironment, "make_state": make_state}
    return collect(tasks, policy=policy, **{**defaults, **options})


def test_a_finished_episode_is_recorded_whole() -> None:
    [episode] = play([task()], Script(look("a"), answer("red")), key=(7, 3), actor_version=2)
    assert episode.success and episode.terminated
    assert not (episode.truncated or episode.out_of_budget or episode.error)
    assert (episode.key, episode.actor_version, episode.max_turns) == ((7, 3, 0), 2, 6)
    assert [dict(turn.rewards) for turn in episode.turns] == [
        {"useful_result": 1.0},
        {"success": 1.0},
    ]
    assert episode.turns[1].messages[:-2] == episode.turns[0].messages
    assert episode.turns[0].checklist == (("look", True), ("answer", False))
    assert episode.privileged_before(0) == {"gold": "red", "turn": 0}
    assert Trajectory.from_json(json.loads(json.dumps(episode.to_json()))) is not None


def test_a_reviewer_is_asked_once_a_tick_for_all_that_go_on() -> None:
    asked: list[list[tuple[tuple[int, ...], int]]] = []

    def reviewer(episodes: Sequence[Trajectory]) -> list[str]:
        asked.append([(e.key, len(e.turns)) for e in episodes])
        facts = [e.privileged_before(t) for e in episodes for t in range(len(e.turns) + 1)]
        assert not any(facts), "a reviewer speaks to the actor"
        return [f"review of {e.key[-1]}.{len(e.turns)}" for e in episodes]

    policy = Script(look("a"), look("b"), answer("red"))
    episodes = play([task(0), task(1)], policy, reviewer=reviewer)
    assert asked == [[((0, 0, n), turn) for n in (0, 1)] for turn in (1, 2)]
    for number, episode in enumerate(episodes):
        assert [turn.produced.get("review") for turn in episode.turns] == [
            f"review of {number}.1",
            f"review of {number}.2",
            None,
        ]
        assert episode.privileged_before(1) == {"gold": "red", "turn": 1}


def test_out_of_turns_is_terminated_and_out_of_budget() -> None:
    [episode] = play([task()], Script(look("a"), look("b"), look("c"), look("a")))
    assert len(episode.turns) == 6
    assert episode.terminated and episode.out_of_budget and not episode.truncated
    assert not episode.success
    assert [turn.info["repeated"] for turn in episode.turns] == [False] * 3 + [True] * 3
    assert episode.turns[3].rewards == {"repeated": 1.0}


def test_an_answer_in_the_last_turn_is_within_budget() -> None:
    [episode] = play([task()], Script(look("a"), answer("red")), max_turns=2)
    assert episode.success and not episode.out_of_budget


@pytest.mark.parametrize("fails_at", ["reset", 2])
def test_a_fault_of_the_environment_drops_the_episode_and_invents_nothing(fails_at: object) -> None:
    BoxEnvironment.opened.clear()
    tasks = [task(0), task(1, fails_at=fails_at), task(2)]
    policy = Script(look("a"), answer("red"))
    good, bad, other = play(tasks, policy, parallel=1)
    assert good.success and other.success
    assert bad.error and not (bad.terminated or bad.success or bad.out_of_budget)
    assert all("success" not in turn.rewards for turn in bad.turns)
    assert len(bad.turns) == (1 if fails_at == 2 else 0), "the turn that broke is not recorded"
    assert len(BoxEnvironment.opened) == 2, "a broken instance is not used again"
    assert all(environment.closed for environment in BoxEnvironment.opened)


def test_errors_meant_for_people_and_faults_of_the_policy_end_the_collection() -> None:
    class Misused(BoxEnvironment):
        def reset(self, task: Task) -> Reset:
            raise UsageError("no such database")

    with pytest.raises(UsageError, match="no such database"):
        play([task()], Script("x"), make_environment=Misused)

    class Broken:
        def generate(
            self, requests: Sequence[Request], *, greedy: bool = False
        ) -> list[Generation]:
            raise MemoryError

    BoxEnvironment.opened.clear()
    with pytest.raises(MemoryError):
        play([task(0), task(1)], Broken())
    assert [environment.closed for environment in BoxEnvironment.opened] == [1, 1]


def test_broken_calls_and_empty_replies_are_observations_with_a_penalty() -> None:
    [episode] = play([task()], Script('{"name": "look"', "", "hello", answer("red")))
    assert [turn.rewards.get("format", 0.0) for turn in episode.turns] == [1.0, 1.0, 0.0, 0.0]
    assert "not valid JSON" in episode.turns[0].observation[0]["content"]
    assert episode.success


def test_a_full_context_is_a_limit_of_the_task() -> None:
    class Overflows(Script):
        def generate(
            self, requests: Sequence[Request], *, greedy: bool = False
        ) -> list[Generation]:
            full = requests[0].key[-1] == 2
            return [replace(g, overflow=full) for g in super().generate(requests)]

    tight = {"tool_prompt": "none", "max_tokens": 24}
    long_box = task(boxes={"a": "red " * 200, "b": "blue"})
    [by_state] = play(
        [long_box], Script(look("a")), make_state=lambda: build_state(tight, count_words)
    )
    [by_model] = play([task()], Overflows(look("a"), look("b"), look("c")))
    for episode, turns in ((by_state, 1), (by_model, 2)):
        assert episode.out_of_budget and episode.terminated and not episode.error
        assert len(episode.turns) == turns
    tight["max_tokens"] = 3
    [nothing] = play([task()], Script("x"), make_state=lambda: build_state(tight, count_words))
    assert nothing.error and "goal alone" in nothing.error and not nothing.turns


def test_order_and_keys_do_not_depend_on_how_many_play_at_once() -> None:
    class Keyed:
        """Says something that depends on the key, so that episodes differ in length."""

        def generate(
            self, requests: Sequence[Request], *, greedy: bool = False
        ) -> list[Generation]:
            return [Generation(text=self.text(*request.key[-2:])) for request in requests]

        def text(self, episode: int, turn: int) -> str:
            return answer("red") if turn >= episode % 5 else look("abc"[(episode + turn) % 3])

    tasks = [task(number) for number in range(11)]
    seen: list[int] = []
    one = play(tasks, Keyed(), parallel=1, on_episode=lambda e: seen.append(e.key[-1]))
    assert seen == list(range(11))
    for parallel in (3, 64):
        assert play(tasks, Keyed(), parallel=parallel) == one
    share = [2, 5, 9]
    assert play([tasks[i] for i in share], Keyed(), indices=share) == [one[i] for i in share]


def test_freed_seats_are_taken_by_the_next_task_at_once() -> None:
    policy = Script(answer("red"))
    play([task(number) for number in range(5)], policy, parallel=2)
    assert [[key[2] for key in batch] for batch in policy.batches] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("checklist", [True, False])
def test_privileged_facts_reach_no_state(checklist: bool) -> None:
    """Alter the gold: environment, checklist and state show the actor the same to the byte."""

    def shown(gold: str) -> list[tuple[object, ...]]:
        requests: list[tuple[object, ...]] = []

        class Spy(Script):
            def generate(
                self, asked: Sequence[Request], *, greedy: bool = False
            ) -> list[Generation]:
                for request in asked:
                    past = request.previous
                    requests.append((json.dumps([*request.messages, *request.tools]), past))
                return super().generate(asked)

        policy = Spy(look("a"), look("a"), '{"broken', answer("red"))
        options = {"checklist": checklist}
        play([task(gold=gold)], policy, make_state=lambda: build_state(options, count_words))
        return requests

    assert shown("red") == shown("something else")
    assert len(shown("red")) == 4


def test_the_recorder_keeps_the_state_apart_from_what_the_action_caused() -> None:
    """Another action (and so another result) at t leaves view t alone and changes view t+1."""
    [one] = play([task()], Script(look("a"), look("b"), answer("red")))
    [other] = play([task()], Script(look("a"), look("c"), answer("red")))
    views = [[json.dumps(turn.messages) for turn in episode.turns] for episode in (one, other)]
    assert views[0][:2] == views[1][:2]
    assert views[0][2] != views[1][2]
    assert one.privileged_before(1) == other.privileged_before(1)
    assert one.turns[0].checklist == other.turns[0].checklist


def test_the_expert_plays_through_the_same_rollout() -> None:
    tasks = [task(number) for number in range(3)]
    episodes = demonstrate_episodes(
        tasks, make_environment=BoxEnvironment, make_state=make_state, seed=0
    )
    assert all(episode.success and len(episode.turns) == 2 for episode in episodes)
    played = play(tasks, Script(look("a"), answer("red")), key=(0, 0))
    assert episodes == played


def test_an_environment_without_an_expert_says_so() -> None:
    class Silent(BoxEnvironment):
        demonstrate = None

    class Bare:
        name = "bare"

    with pytest.raises(UsageError, match="'bare' has no scripted expert"):
        demonstrate_episodes([], make_environment=Bare, make_state=make_state, seed=0)


def test_half_characters_of_a_world_cannot_end_a_run() -> None:
    """No file and no tokenizer could hold them."""
    odd = replace(task(), payload=task().payload | {"boxes": {"a": "re\ud800d"}})
    [episode] = play([odd], Script(look("a"), answer("red")))
    assert episode.turns[0].observation[0]["content"] == "re\ufffdd"
    json.dumps(episode.to_json(), ensure_ascii=False).encode()
