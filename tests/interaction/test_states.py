"""The sliding window: extension, forgetting, budget; and what it must never depend on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stages.interaction.environments.base import Reset
from stages.interaction.states import StateOverflow, StateProcessor, build_state
from stages.interaction.states.window import SHORTEST_CUT, cut_middle
from stages.interaction.trajectory import Action, Message, Turn
from tests.interaction.toys import TOOLS, count_words

GOAL: Message = {"role": "user", "content": "which colour is in box a?"}
RESET = Reset((GOAL,), TOOLS, "goal", checklist=(("look", False),))


def turn(index: int, observation: str | Sequence[Message], done: bool = False) -> Turn:
    if isinstance(observation, str):
        observation = ({"role": "tool", "content": observation},)
    action = Action(f"action {index}")
    return Turn(index, (), action, tuple(observation), checklist=(("look", done),))


def state(**options: object) -> StateProcessor:
    processor = build_state({"tool_prompt": "none", **options}, count_words)
    processor.reset(RESET)
    return processor


def test_the_layout_is_goal_exchanges_and_the_checklist_as_it_stood() -> None:
    window = state()
    window.update(turn(0, "red", done=True))
    assert window.render() == [
        {"role": "user", "content": "which colour is in box a?\n[ ] look"},
        {"role": "assistant", "content": "action 0"},
        {"role": "tool", "content": "red\n[x] look"},
    ]
    assert window.produced() == {"checklist": "[x] look"}


def test_checklist_goes_under_the_last_message_of_an_exchange() -> None:
    window = state()
    window.update(
        turn(0, [{"role": "tool", "content": "ok"}, {"role": "user", "content": "and b?"}])
    )
    assert [m["content"] for m in window.render()[2:]] == ["ok", "and b?\n[ ] look"]


def test_without_checklist_nothing_is_added() -> None:
    window = state(checklist=False)
    window.update(turn(0, "red", done=True))
    assert [m["content"] for m in window.render()] == [GOAL["content"], "action 0", "red"]
    assert window.produced() == {}


def test_tools_are_described_after_the_environments_own_system_message() -> None:
    window = build_state({"tool_prompt": "full"}, count_words)
    window.reset(Reset(({"role": "system", "content": "Be brief."}, GOAL), TOOLS, "goal"))
    system, goal = window.render()
    assert system["role"] == "system" and system["content"].startswith("Be brief.\n\n")
    assert '"name": "look"' in system["content"] and goal == GOAL


def test_every_state_extends_the_last_while_nothing_has_left() -> None:
    window = state(exchanges=5)
    before = window.render()
    for index in range(5):
        window.update(turn(index, f"result {index}", done=index > 2))
        now = window.render()
        assert now[: len(before)] == before and len(now) == len(before) + 2
        before = now


def test_old_exchanges_leave_and_nothing_else_changes() -> None:
    window = state(exchanges=2)
    for index in range(4):
        window.update(turn(index, f"result {index}"))
    contents = [m["content"] for m in window.render()]
    assert contents[0].startswith(GOAL["content"])
    assert [c.split("\n")[0] for c in contents[1:]] == [
        "action 2",
        "result 2",
        "action 3",
        "result 3",
    ]


def test_the_newest_request_stays_under_the_goal_once_its_exchange_has_left() -> None:
    window = state(exchanges=2)
    for index, question in enumerate(("and b?", "and c?")):
        window.update(turn(index, [{"role": "tool", "content": "ok"}, _user(question)]))
    assert [m["content"] for m in window.render() if m["role"] == "user"] == [
        f"{GOAL['content']}\n[ ] look",
        "and b?\n[ ] look",
        "and c?\n[ ] look",
    ]
    window.update(turn(2, "red"))
    assert "and b?" not in str(window.render()), "a newer request stands in the window"
    window.update(turn(3, "red"))
    shown = window.render()
    assert [m["role"] for m in shown] == ["user", "assistant", "tool", "assistant", "tool"]
    assert shown[0]["content"] == f"{GOAL['content']}\n[ ] look\nand c?"
    window.reset(RESET)
    assert window.render()[0]["content"] == f"{GOAL['content']}\n[ ] look"


def test_a_request_without_a_goal_before_it_stands_alone() -> None:
    window = build_state({"tool_prompt": "full", "exchanges": 1}, count_words)
    window.reset(Reset((), TOOLS, "goal"))
    window.update(turn(0, [_user("and b?")]))
    window.update(turn(1, "red"))
    assert [m["role"] for m in window.render()] == ["system", "user", "assistant", "tool"]
    assert window.render()[1] == _user("and b?")


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def test_each_exchange_keeps_the_review_it_got() -> None:
    window = state(review="words")
    before = window.render()
    for index, word in enumerate(("high", "low")):
        window.update(replace(turn(index, "red"), produced={"review": f"review: {word}"}))
        now = window.render()
        assert now[: len(before)] == before, "so that prompts extend one another"
        before = now
    assert [m["content"] for m in before if m["role"] == "tool"] == [
        "red\n[ ] look\nreview: high",
        "red\n[ ] look\nreview: low",
    ]
    bare = state(review="words", checklist=False)
    bare.update(replace(turn(0, "red"), produced={"review": "review: low"}))
    assert bare.render()[-1]["content"] == "red\nreview: low"
    silent = state()
    silent.update(replace(turn(0, "red"), produced={"review": "review: low"}))
    assert silent.render()[-1]["content"] == "red\n[ ] look"


def test_over_budget_the_oldest_leave_first_and_the_last_observation_is_cut_last() -> None:
    window = state(max_tokens=60)
    window.update(turn(0, "word " * 30))
    window.update(turn(1, "word " * 30))
    shown = window.render()
    assert [m["content"] for m in shown if m["role"] == "assistant"] == ["action 1"]
    assert shown[-1]["content"].startswith("word " * 30)
    window.update(turn(2, "begin " + "word " * 300 + "end"))
    shown = window.render()
    assert count_words(shown) <= 60
    assert count_words(shown) > 50, "the cut takes no more than it must"
    text = shown[-1]["content"]
    assert text.startswith("begin ") and " ... " in text and text.endswith("end\n[ ] look")


def test_what_cannot_fit_overflows() -> None:
    tight = state(max_tokens=3)
    with pytest.raises(StateOverflow, match="goal alone"):
        tight.render()
    tight = state(max_tokens=14)
    tight.update(turn(0, "a b " * 40))
    with pytest.raises(StateOverflow, match="last exchange"):
        tight.render()


def test_reset_forgets() -> None:
    window = state()
    fresh = window.render()
    window.update(turn(0, "red"))
    window.reset(RESET)
    assert window.render() == fresh


def test_the_shortcut_of_the_budget_never_lets_a_prompt_through() -> None:
    """Against counting every time, over random episodes; token ids known or not."""
    draw = random.Random(0)
    for _ in range(200):
        budget, known = draw.choice([320, 400, 800]), draw.random() < 0.5

        def count(messages: Sequence[Message]) -> int:
            return 20 + sum(len(m["content"].encode()) + 8 for m in messages)

        window = build_state({"tool_prompt": "none", "max_tokens": budget}, count)
        window.reset(RESET)
        for index in range(6):
            now = turn(index, "é" * draw.choice([9, 60, 120, 600]))
            if draw.random() < 0.3:
                asked: Message = {"role": "user", "content": "ü" * draw.choice([9, 20])}
                now = replace(now, observation=(*now.observation, asked))
            if known:
                ids = tuple(range(count(window.render())))
                now = Turn(**{**now.__dict__, "prompt_ids": ids, "action_ids": tuple(range(16))})
            window.update(now)
            assert count(window.render()) <= budget


def test_the_ids_of_a_cut_state_say_nothing_of_the_whole_one() -> None:
    def count(messages: Sequence[Message]) -> int:
        return sum(300 if len(m["content"]) > 200 else 10 for m in messages)

    window = build_state({"tool_prompt": "none", "max_tokens": 250}, count)
    window.reset(RESET)
    window.update(turn(0, "x" * 600))
    ids = tuple(range(count(window.render())))
    assert len(ids) == 30, "cut until it fits"
    window.update(replace(turn(1, "red"), prompt_ids=ids, action_ids=(1, 2)))
    assert count(window.render()) <= 250


def test_counting_is_skipped_where_the_budget_is_far() -> None:
    calls: list[int] = []
    window = build_state({"tool_prompt": "none"}, lambda m: calls.append(1) or count_words(m))
    window.reset(RESET)
    for index in range(5):
        window.update(turn(index, "red"))
        window.render()
    assert not calls


def test_cut_middle_keeps_both_ends() -> None:
    assert cut_middle("abc", 48) == "abc"
    cut = cut_middle("a" * 100 + "b" * 100, SHORTEST_CUT)
    assert len(cut) == SHORTEST_CUT and cut.startswith("a" * 20) and cut.endswith("b" * 20)
