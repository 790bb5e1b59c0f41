"""Summary, facts and memory: of what has left only, within budgets, and back from a record."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stages.common.chat import encode_prompt
from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.interaction.environments.base import Reset
from stages.interaction.generation import Generation, Request
from stages.interaction.states import StateOptions, StateOverflow, build_state, replay
from stages.interaction.states.embedders import HashingEmbedder
from stages.interaction.states.fitting import Line, Meter, fit
from stages.interaction.states.options import SummaryOptions
from stages.interaction.states.summary import Summary
from stages.interaction.states.window import WindowState
from stages.interaction.states.writers import Merge, ModelWriter, RulesWriter
from stages.interaction.trajectory import Action, Message, ToolCall, Trajectory, Turn
from tests.interaction.toys import TOOLS, count_words

GOAL: Message = {"role": "user", "content": "Count the flights."}
RESET = Reset((GOAL,), TOOLS, "Count the flights.", checklist=(("look", False),))
SUMMARY = {"summary": {"max_tokens": 40}}
FACTS = {"facts": {"max_tokens": 40}}
MEMORY = {"memory": {"max_tokens": 40, "top_k": 1, "embedder": "hashing"}}
ALL: dict[str, Any] = {**SUMMARY, **FACTS, **MEMORY}


def called(index: int, tool: str, argument: str, result: str, asked: str = "") -> Turn:
    """A turn with one call, what came back, and what the user asked next."""
    text = json.dumps({"name": tool, "arguments": {"x": argument}})
    seen: list[Message] = [{"role": "tool", "content": result}]
    seen += [{"role": "user", "content": asked}] if asked else []
    action = Action(text, (ToolCall(tool, {"x": argument}),))
    return Turn(index, (), action, tuple(seen), checklist=(("look", True),))


def talked(index: int, said: str, answer: str) -> Turn:
    return Turn(index, (), Action(said), ({"role": "user", "content": answer},))


EPISODE = (
    called(0, "tables", "", "flights, hubs"),
    called(1, "describe", "hubs", "hub_no INTEGER, city TEXT"),
    called(2, "query", "SELECT nothing", "error: no such column"),
    called(3, "answer", "29", "answer received", asked="Which city has hub 7?"),
    talked(4, "Which year do you mean?", "The year 2024."),
    called(5, "query", "SELECT city FROM hubs", "Rome"),
)


def played(
    options: dict[str, Any], turns: Sequence[Turn] = EPISODE, count: Any = count_words
) -> tuple[Any, list[list[Message]], Trajectory]:
    """The processor after ``turns``, what it showed before each, and the record of it all."""
    state = build_state({"tool_prompt": "none", "exchanges": 1, **options}, count)
    state.reset(RESET)
    shown, made = [], []
    for turn in turns:
        shown.append(state.render())
        made.append(replace(turn, messages=tuple(shown[-1]), produced=state.produced()))
        state.update(made[-1])
    record = Trajectory("t", "k", "g", RESET.goal, (GOAL,), TOOLS, RESET.checklist)
    return state, shown, record.with_turns(made)


def block(messages: Sequence[Message], title: str) -> list[str]:
    """The lines under a title in the first user message."""
    lines = str(messages[0]["content"]).split("\n")
    titles = ("summary:", "facts:", "memory:")
    if title not in lines:
        return []
    after = lines[lines.index(title) + 1 :]
    end = next((i for i, line in enumerate(after) if line in titles), len(after))
    return after[:end]


@pytest.mark.parametrize("options", [SUMMARY, FACTS, MEMORY, ALL], ids=lambda o: "+".join(o))
def test_nothing_is_said_before_something_has_left(options: dict[str, Any]) -> None:
    plain, _, _ = played({"exchanges": 8})
    state, shown, _ = played({"exchanges": 8, **options})
    assert state.render() == plain.render() and state.produced() == plain.produced()
    _, narrow, _ = played(options)
    assert narrow[:2] == shown[:2], "one exchange fits in the window"
    assert len(str(narrow[2][0]["content"])) > len(str(shown[2][0]["content"]))


def test_a_summary_takes_in_each_turn_as_it_leaves() -> None:
    state, shown, record = played(SUMMARY)
    title = "summary:"
    assert block(shown[1], title) == []
    assert block(shown[2], title) == ["tables(): flights, hubs"]
    assert block(shown[3], title)[-1] == "describe(hubs): hub_no INTEGER, city TEXT"
    made = record.turns[3].produced
    assert made["left"] == 2
    assert made["summary"] == {
        "text": "\n".join(block(shown[3], title)),
        "turns": 2,
        "writer": "rules",
    }
    assert "Rome" not in str(block(state.render(), title)), "the window shows it"


def test_old_turns_of_a_summary_keep_what_was_done_and_its_numbers() -> None:
    turns = [
        called(i, "look_up", f"lamp {i}", f"on the shelf by the door K{i}-{i}55") for i in range(9)
    ]
    _, shown, _ = played({"summary": {"max_tokens": 24}}, turns)
    title = "summary:"
    assert block(shown[3], title)[-1] == "look_up(lamp 1): on the shelf by the door K1-155"
    lines = block(shown[-1], title)
    assert lines[-2:] == ["look_up(lamp 5): K5-555", "look_up(lamp 6): K6-655"]
    assert not any("lamp 0" in line for line in lines)


def test_facts_are_steps_requests_answers_and_entities() -> None:
    state, shown, record = played({"facts": {"max_tokens": 400}})
    assert block(shown[4], "facts:") == [
        "done: Count the flights. -> answer(29)",
        "did: tables(): flights, hubs",
        "did: describe(hubs): hub_no INTEGER, city TEXT",
        "failed: query(SELECT nothing): error: no such column",
    ]
    now = block(state.render(), "facts:")
    assert "done: Count the flights. -> answer(29)" in now
    assert "done: Which year do you mean? -> The year 2024." in now
    assert "Rome" not in str(now), "it is in the window"
    made = record.turns[4].produced["facts"]
    assert made["writer"] == "rules" and made["items"][1] == {
        "kind": "did",
        "text": "tables(): flights, hubs",
        "turn": 0,
    }


def test_what_the_request_speaks_of_goes_before_what_is_newer() -> None:
    turns = [called(i, "look_up", f"thing {w}", f"shelf {i}") for i, w in enumerate("abcdefgh")]
    turns.append(called(8, "answer", "1", "received", asked="Where is thing b?"))
    state, shown, _ = played({"facts": {"max_tokens": 16}}, turns)
    assert block(state.render(), "facts:")[0] == "did: look_up(thing b): shelf 1"
    assert block(shown[8], "facts:")[-1] == "did: look_up(thing g): shelf 6"


def test_an_open_request_is_told_unless_it_is_on_show() -> None:
    turns = [called(0, "look", "a", "red", asked="And b?"), *EPISODE[1:3]]
    state, _, _ = played({"facts": {"max_tokens": 60}}, turns)
    shown = state.render()
    assert str(shown[0]["content"]).endswith("\nAnd b?"), "the window keeps the newest request"
    assert "open" not in str(block(shown, "facts:"))


def test_names_with_numbers_quotes_and_addresses_are_entities() -> None:
    said = "My order #W-331, sent to ann@x.org, has the 'blue lamp'."
    turns = [talked(0, "Hello!", said), *EPISODE[1:3]]
    state, _, _ = played({"facts": {"max_tokens": 100}}, turns)
    found = next(line for line in block(state.render(), "facts:") if line.startswith("entities"))
    assert {"#W-331", "ann@x.org", "blue lamp"} <= set(found.removeprefix("entities: ").split(", "))


def test_memory_recalls_the_turn_that_the_request_speaks_of() -> None:
    turns = [
        called(i, "look_up", f"{w} lamp", f"shelf {i}") for i, w in enumerate(("red", "old", "big"))
    ]
    turns.append(called(3, "answer", "1", "received", asked="On which shelf is the old lamp?"))
    state, shown, _ = played({**MEMORY, "exchanges": 1}, turns)
    assert block(state.render(), "memory:") == ["turn 2: look_up(old lamp): shelf 1"]
    made = state.produced()["memory"]
    assert made["embedder"] == "hashing"
    assert [row["turn"] for row in made["recalled"]] == [1]
    assert made["recalled"][0]["similarity"] > 0.3
    state.reset(RESET)
    assert state.render() == shown[0]


def test_memory_does_not_recall_the_request_itself() -> None:
    turns = [called(0, "look", "a", "red", asked="Where is the old lamp?"), *EPISODE[1:3]]
    state, _, _ = played(MEMORY, turns)
    recalled = [line for line in block(state.render(), "memory:") if line.startswith("turn")]
    assert len(recalled) == 1 and "Where is" not in recalled[0]


def test_missing_faiss_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match=r"not installed; install the extra"):
        build_state({"tool_prompt": "none", **MEMORY}, count_words)


def test_hashed_words_are_directions_that_depend_on_the_text_alone() -> None:
    embed = HashingEmbedder().embed
    rows = embed(["the old lamp", "an old lamp!", "twelve red flights", ""])
    assert rows.shape == (4, 512) and (rows[3] == 0).all()
    assert ((rows[:3] ** 2).sum(1) ** 0.5).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert rows[0] @ rows[1] > 0.5 > rows[0] @ rows[2]
    assert (embed(["the old lamp"])[0] == rows[0]).all()


# ---- budgets


@pytest.fixture(scope="module")
def tokens() -> Callable[[Sequence[Message]], int]:
    """A real tokenizer's count."""
    tokenizer = load_tokenizer("recipes/base")
    return lambda messages: len(encode_prompt(tokenizer, messages))


def test_no_budget_is_ever_exceeded(tokens: Any) -> None:
    """Random budgets, processors and texts, by the real tokenizer; pieces and the whole."""
    draw = random.Random(1)
    words = [
        "lamp",
        "K7-331",
        "é" * 7,
        "<|end|>",
        "<|assistant|>",
        "SELECT",
        "\n",
        "x" * 40,
        "日本",
    ]
    shown = overflows = 0
    for _ in range(30):
        budgets = {name: draw.randint(16, 80) for name in ALL if draw.random() < 0.7}
        whole = sum(budgets.values()) + draw.randint(64, 300)
        options = {name: {**ALL[name], "max_tokens": n} for name, n in budgets.items()}
        state = build_state(
            {
                "tool_prompt": "none",
                "exchanges": draw.randint(1, 5),
                "max_tokens": whole,
                **options,
            },
            tokens,
        )
        state.reset(RESET)
        meter = Meter(tokens)
        for index in range(8):
            result = " ".join(draw.choices(words, k=draw.choice([1, 5, 40, 150])))
            asked = draw.choice(["", "", "and the old lamp K7-331?"])
            state.update(called(index, "look", draw.choice(words), result, asked))
            try:
                assert tokens(state.render()) <= whole
            except StateOverflow:
                overflows += 1
                continue
            for piece in state.pieces:
                text = piece.render("and the old lamp K7-331?")
                assert meter(text) <= budgets[piece.name], (piece.name, text)
                shown += bool(text)
    assert shown > 150 and overflows < 60


def test_pieces_make_room_before_an_episode_ends() -> None:
    """Where the goal and the cut exchange need it all, the memory is silent first, then all are."""
    result = "word " * 400
    for whole, told in ((140, 3), (95, 1), (50, 0)):
        turns = [called(i, "look", f"box {i}", result) for i in range(3)]
        state, _, _ = played({**ALL, "max_tokens": whole}, turns)
        shown = state.render()
        assert count_words(shown) <= whole
        titles = ("summary:", "facts:", "memory:")
        assert sum(bool(block(shown, title)) for title in titles) <= told + 1
    with pytest.raises(StateOverflow):
        played({**ALL, "max_tokens": 8}, turns)


def test_lines_fit_by_rank_and_are_shown_by_place() -> None:
    meter = Meter(count_words)
    ranked = [Line("a b c", 2), Line("d e f g h i d e f", 1), Line("j k", 0)]
    text, shown = fit(meter, "title", ranked, 14)
    assert text == "title\nj k\na b c" and [line.place for line in shown] == [0, 2]
    assert fit(meter, "title", ranked, 1) == ("", [])
    long, _ = fit(meter, "title", [Line("word " * 50, 0)], 12)
    assert long.startswith("title\nword") and long.endswith("...") and meter(long) <= 12


# ---- back from the record


class Notes:
    """A policy that writes "n<k>: <the newest line>"; keeps how much it was asked at once."""

    def __init__(self, *, silent: bool = False) -> None:
        self.batches: list[int] = []
        self.silent = silent

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        assert greedy
        self.batches.append(len(requests))
        texts = [str(r.messages[-1]["content"]).split("\n- ")[-1].split("\n")[0] for r in requests]
        return [
            Generation(text="" if self.silent else f" n{len(self.batches)}:\n{t} ") for t in texts
        ]


def noted(notes: Notes, **options: Any) -> WindowState:
    chosen = StateOptions.of({"tool_prompt": "none", "exchanges": 1, **options})
    meter, writer = Meter(count_words), ModelWriter(notes, "notes@1")
    return WindowState(chosen, count_words, [Summary(SummaryOptions("x", 60), meter, writer)])


@pytest.mark.parametrize("whole", [2048, 150, 100])
@pytest.mark.parametrize("upto", range(1, 7))
def test_the_record_of_an_episode_holds_the_whole_state(whole: int, upto: int) -> None:
    """Through JSON; also where the budget made exchanges leave that the window would hold."""
    options = {**ALL, "max_tokens": whole, "exchanges": 4}
    long = [replace(t, action=replace(t.action, text=t.action.text + " x" * 9)) for t in EPISODE]
    state, _, record = played(options, long[:upto])
    saved = Trajectory.from_json(json.loads(json.dumps(record.to_json())))
    again = build_state({"tool_prompt": "none", **options}, count_words)
    replay(again, saved)
    assert again.render() == state.render()
    assert again.produced() == state.produced()


def test_a_recorded_summary_is_not_written_twice() -> None:
    first = Notes()
    state = noted(first)
    state.reset(RESET)
    made = []
    for turn in EPISODE:
        state.render()
        made.append(replace(turn, produced=state.produced()))
        state.update(made[-1])
    shown = state.render()
    assert len(first.batches) == 5 and made[3].produced["summary"]["writer"] == "notes@1"
    record = Trajectory("t", "k", "g", RESET.goal, (GOAL,), TOOLS, RESET.checklist)
    second = Notes()
    again = replay(noted(second), record.with_turns(made))
    again.render()
    assert second.batches == [1], "only what the last turn pushed out was not written before"
    second.batches += [0] * 4
    assert [str(m["content"]).replace("n1", "n5") for m in again.render()] == [
        m["content"] for m in shown
    ]


def test_summaries_of_all_episodes_of_a_tick_are_one_batch() -> None:
    notes = Notes()
    writer, meter = ModelWriter(notes, "notes"), Meter(count_words)
    orders = [writer.submit(Merge("g", f"s{i}", (f"turn {i}",), 20), meter) for i in range(70)]
    orders[3].withdraw()
    assert notes.batches == []
    assert orders[1].text() == "n1: turn 1" and orders[69].text() == "n2: turn 69"
    assert notes.batches == [64, 5]
    assert orders[1].writer == "notes"
    silent = ModelWriter(Notes(silent=True), "notes").submit(Merge("g", "old", ("new",), 9), meter)
    assert silent.text() == "old\nnew", "where the model says nothing, the rules write"
    assert silent.writer == "rules"


def test_rules_write_a_repeated_turn_once() -> None:
    meter = Meter(count_words)
    merge = Merge("g", "look(a): red\nlook(b): blue", ("look(a): red",), 40)
    assert RulesWriter().submit(merge, meter).text() == "look(b): blue\nlook(a): red"
