"""Questions that need several documents, generated and a person's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.interaction.actions import format_call, parse_action
from stages.interaction.environments.base import SPLITS, Step, Task
from stages.interaction.environments.report import ReaderOptions, ReportEnvironment, ReportOptions

CLEAN = ReportOptions(expert=ReaderOptions.clean())


def use(environment: ReportEnvironment, name: str, **arguments: Any) -> Step:
    return environment.step(parse_action(format_call(name, arguments)))


def play(environment: ReportEnvironment, task: Task, seed: int = 0) -> list[Step]:
    expert, seen = environment.demonstrate(task, seed), environment.reset(task).messages
    steps: list[Step] = []
    while not steps or not steps[-1].terminated:
        steps.append(environment.step(parse_action(expert(seen), environment.tools)))
        seen = steps[-1].messages
    return steps


def test_the_clean_reader_is_always_right_and_needs_several_documents():
    environment = ReportEnvironment(CLEAN)
    for task in environment.tasks("test", 40, 0):
        assert len(task.payload["needed"]) >= 2
        steps = play(environment, task)
        assert steps[-1].success
        assert len(steps) <= environment.max_turns
        assert sum(s.rewards.get("sub_goal", 0.0) for s in steps) == pytest.approx(1.0)


@pytest.mark.parametrize("mistake", ["stops_early", "wrong_figure"])
def test_each_mistake_spoils_the_answer(mistake):
    habits = ReaderOptions.clean().model_copy(update={mistake: 1.0})
    environment = ReportEnvironment(ReportOptions(expert=habits))
    tasks = environment.tasks("test", 40, 0)
    # By luck a wrong way leads to the right region now and then.
    assert sum(play(environment, task)[-1].success for task in tasks) <= 12


def test_splits_share_no_company():
    environment = ReportEnvironment(CLEAN)
    companies = [
        {t.payload["company"] for t in environment.tasks(split, 50, 0)} for split in SPLITS
    ]
    assert sum(map(len, companies)) == len(set().union(*companies))


def test_search_ranks_and_reading_pays_once():
    environment = ReportEnvironment(CLEAN)
    task = environment.tasks("train", 1, 0)[0]
    environment.reset(task)
    name = task.payload["needed"][0]
    shown = use(environment, "search", query=name.replace("_", " ")).messages[0]["content"]
    assert shown.startswith(f"{name}: ") and len(shown.split("\n")) == 4
    assert use(environment, "search", query="").messages[0]["content"] == "no document fits"
    assert name in use(environment, "list").messages[0]["content"]
    assert use(environment, "read", document=name).rewards["sub_goal"] == 0.25
    assert use(environment, "read", document=name).rewards == {}
    assert "no such document" in use(environment, "read", document="x").messages[0]["content"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs/more").mkdir(parents=True)
    (tmp_path / "docs/a.txt").write_text("The pump was built in Turin.")
    (tmp_path / "docs/more/b.md").write_text("Turin lies on the river Po.")
    rows = [
        {"question": "On which river was the pump built?", "answer": "Po", "split": split}
        | {"documents": ["a.txt", "more/b.md"], "id": split}
        for split in SPLITS
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def own(folder: Path) -> ReportEnvironment:
    options = ReportOptions(documents=folder / "docs", questions=folder / "questions.jsonl")
    return ReportEnvironment(options)


def test_a_folder_of_ones_own(folder):
    environment = own(folder)
    (task,) = environment.tasks("test", 5, 0)
    assert task.id == "test"
    assert play(environment, task)[-1].success
    environment.reset(task)
    shown = use(environment, "search", query="rivers").messages[0]["content"]
    assert shown == "more/b.md: more/b.md Turin lies on the river Po."
    assert not use(environment, "submit", answer="Tiber").success


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question": "?"}', 'lacks "question" or "answer"'),
        ("{", "is no JSON"),
        ('{"question": "?", "answer": 1, "split": "dev"}', "split 'dev', expected one of"),
    ],
)
def test_bad_questions_are_named_by_their_line(folder, line, says):
    with (folder / "questions.jsonl").open("a") as out:
        out.write("\n" + line)
    with pytest.raises(UsageError, match="line 4") as error:
        own(folder).tasks("test", 5, 0)
    assert says in str(error.value)


def test_a_folder_without_documents_is_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    options = ReportOptions(documents=tmp_path / "empty", questions=folder / "questions.jsonl")
    with pytest.raises(UsageError, match=r"holds 0 \.txt and \.md files"):
        ReportEnvironment(options)
    with pytest.raises(ValueError, match="go together"):
        ReportOptions(documents=folder / "docs")
