"""``aac chat``: ask the agent and watch it work in the environment, or watch it play a task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

from stages.common.console import say, show
from stages.common.errors import UsageError
from stages.common.seeding import set_threads
from stages.evaluation.narration import Narrator
from stages.evaluation.run import Reviewers, arena_of, no_reviewers, player
from stages.evaluation.supervise import Supervise, unsupervised
from stages.interaction.actions import plain_value
from stages.interaction.arena import Arena
from stages.interaction.environments import needs_person
from stages.interaction.environments.base import Task
from stages.interaction.environments.human import HumanOptions
from stages.interaction.player import LoadedActor
from stages.interaction.rollout import collect
from stages.interaction.terminal import Terminal
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe

FREE = HumanOptions(ask_verdict=False, max_turns=1000)
"""A conversation that is nobody's task."""
OPEN, HELP = "/open", "/help"
"""What a person may type besides questions."""
HELP_TEXT = (
    f"{OPEN} shows the calls of the last answer and what came back in full; exit, quit, Ctrl-D or "
    "Ctrl-C leaves; Ctrl-C during an answer stops it. Text of several lines can be pasted."
)
STAND_IN = "?"
"""The only question in the list that goes with a database without one."""


@dataclass(frozen=True)
class Look:
    """How the agent replies, and how much of its work is shown."""

    greedy: bool = True
    """The likeliest token each time, or sampled."""
    unfolded: bool = False
    """Show calls and what came back in full instead of on one line."""
    supervise: Supervise = unsupervised
    """Who watches over it."""


@runtime_checkable
class Askable(Protocol):
    """Optional: an environment that takes a person's own question."""

    def ask(self, task: Task, question: str) -> Task:
        """The question, asked in the world of ``task``."""
        ...


@runtime_checkable
class Peopled(Protocol):
    """Optional: options of an environment whose user a person can be."""

    def with_person(self) -> Any:
        """The same world with the person at the terminal as its user."""
        ...


def chat_command(
    recipe: Recipe,
    actor: str,
    *,
    question: str | None = None,
    database: Path | None = None,
    task: int | None = None,
    human: bool = False,
    look: Look = Look(),
    reviewers: Reviewers = no_reviewers,
) -> list[dict[str, Any]]:
    """Answer ``question``, or play held-out ``task`` number N, or else ask the person again and
    again until an empty end of input, ``exit`` or ``quit``.

    ``human``: the person is the user of an episode, of ``task`` number N or the first; so they
    are without it where the world has a user and neither question nor task is given.

    ``database``: a SQLite file of the person's own, in place of the recipe's world. Returns what
    was asked and answered: ``{"question", "answer", "turns", "success"}`` (success is None where
    nobody knows the right answer).
    """
    if task is not None and (question is not None or database is not None):
        raise UsageError("--task plays a held-out task; leave out --question and --database.")
    if human and (question is not None or database is not None):
        raise UsageError("--human makes you the user; leave out --question and --database.")
    set_threads(recipe.threads)
    idle = question is None and database is None and task is None
    if human or (idle and isinstance(recipe.environment, Peopled)):
        return [_with_person(recipe, actor, task or 0, look=look, reviewers=reviewers)]
    with _own_database(recipe, database) as world:
        conversation = _conversation(world, actor, look=look, reviewers=reviewers)
        if task is not None:
            return [conversation.play(world.evaluation.split, task, world.evaluation.seed)]
        conversation.open()
        if question is not None:
            return [conversation.answer(question)]
        return list(conversation.answers())


def without_world(recipe: Recipe) -> Recipe:
    """The recipe with a free conversation in place of its world."""
    return recipe.model_copy(update={"environment": FREE})


def _conversation(recipe: Recipe, actor: str, *, look: Look, reviewers: Reviewers) -> Conversation:
    loaded = look.supervise(player(recipe, actor, reviewers))
    arena = arena_of(recipe).served(loaded.state, loaded.reviewer)
    return Conversation(arena, loaded, look=look, seed=recipe.seed)


def _with_person(
    recipe: Recipe, actor: str, task: int, *, look: Look, reviewers: Reviewers
) -> dict[str, Any]:
    """One episode whose user is the person at the terminal (F8)."""
    if not isinstance(recipe.environment, Peopled):
        raise UsageError(
            f"environment {recipe.environment.name} has no user whose place you could take; leave"
            " out --human and ask a question, or watch the agent with --task 0."
        )
    world = recipe.model_copy(update={"environment": recipe.environment.with_person()})
    conversation = _conversation(world, actor, look=look, reviewers=reviewers)
    if sys.stdin.isatty():
        say("Say something; exit or Ctrl-D leaves.")
    return conversation.play(world.evaluation.split, task, world.evaluation.seed)


class Conversation:
    """One agent in one world; every question is an episode of its own."""

    def __init__(self, arena: Arena, actor: LoadedActor, *, look: Look, seed: int) -> None:
        self._arena = arena
        self._actor = actor
        self._look = look
        self._seed = seed
        self._with_person = needs_person(arena.environment)
        self._world: Task | None = None
        self._asked = 0
        self._narrator = self._narrating()

    def open(self) -> None:
        """Choose the world of the questions, the first test task's, and say what it is.

        Raises UsageError if the environment takes no free questions.
        """
        environment = self._askable()
        self._world = self._arena.tasks("test", 1, self._seed)[0]
        goal = self._goal(self._world)
        example = "" if goal == STAND_IN else f' A question about it: "{goal}"'
        say(f"The agent works in {environment.name} ({self._world.group}).{example}")

    def answer(self, question: str) -> dict[str, Any]:
        """Let the agent work on a person's question."""
        if self._world is None:
            raise RuntimeError("answer() before open()")
        played = self._play(self._askable().ask(self._world, question))
        return _record(question, played, success=None)

    def answers(self) -> Iterator[dict[str, Any]]:
        """What the agent makes of each question that is typed, until the person leaves.

        Ctrl-C stops an answer and not the conversation.
        """
        for text in _typed():
            if text == OPEN:
                self._narrator.unfold()
            elif text == HELP:
                say(HELP_TEXT)
            else:
                try:
                    yield self.answer(text)
                except KeyboardInterrupt:
                    say("stopped; ask something else, or exit.")

    def play(self, split: str, number: int, seed: int) -> dict[str, Any]:
        """Let the agent play task ``number`` of a split, and say whether it was right."""
        task = self._task(split, number, seed)
        played = self._play(task, show_goal=not self._with_person)
        if not isinstance(self._arena.environment, HumanOptions):  # there the person has judged
            show("right" if played.success else f"wrong{_expected(played)}")
        return _record(played.goal, played, success=played.success)

    def _askable(self) -> Any:
        environment = self._arena.make_environment()
        environment.close()
        if not isinstance(environment, Askable):
            raise UsageError(
                f"environment {environment.name} takes no questions of your own; watch the agent"
                " play a held-out task with --task 0."
            )
        return environment

    def _task(self, split: str, number: int, seed: int) -> Task:
        tasks = self._arena.tasks(split, number + 1, seed)
        if not 0 <= number < len(tasks):
            raise UsageError(
                f"--task {number} does not exist; give 0 to {len(tasks) - 1} ({split} split)."
            )
        return tasks[number]

    def _play(self, task: Task, *, show_goal: bool = False) -> Trajectory:
        self._narrator = self._narrating()
        if show_goal:
            say(self._goal(task))
        played = collect(
            [task],
            make_environment=self._arena.make_environment,
            make_state=self._arena.states(self._actor.count_tokens),
            policy=self._narrator,
            reviewer=self._arena.reviewer,
            key=(self._seed, self._asked),
            greedy=self._look.greedy,
        )[0]
        self._asked += 1
        self._narrator.close()
        if not self._with_person or played.error is not None or played.out_of_budget:
            _show_end(played)
        return played

    def _narrating(self) -> Narrator:
        return Narrator(
            self._actor.policy, unfolded=self._look.unfolded, calls_only=self._with_person
        )

    def _goal(self, task: Task) -> str:
        environment = self._arena.make_environment()
        try:
            return environment.reset(task).goal
        finally:
            environment.close()


def _show_end(played: Trajectory) -> None:
    if played.error is not None:
        show(f"the environment failed: {played.error}")
    elif played.out_of_budget:
        show(f"no answer within {len(played.turns)} turns")
    else:
        show(f"answer: {_answer(played)}")


def _answer(played: Trajectory) -> str | None:
    """The arguments of the call that ended the episode, or its words."""
    if not played.turns or played.out_of_budget or played.error is not None:
        return None
    action = played.turns[-1].action
    if not action.calls:
        return action.text
    return ", ".join(plain_value(value) for value in action.calls[-1].arguments.values())


def _expected(played: Trajectory) -> str:
    """The right answer, where the environment tells it as a privileged fact."""
    gold = played.privileged_before(len(played.turns)).get("gold_answer")
    return "" if gold is None else f"; expected: {gold}"


def _record(question: str, played: Trajectory, *, success: bool | None) -> dict[str, Any]:
    return {
        "question": question,
        "answer": _answer(played),
        "turns": len(played.turns),
        "success": success,
    }


def _typed() -> Iterator[str]:
    """Questions from the keyboard or a pipe."""
    if sys.stdin.isatty():
        say(f"Type a question; exit or Ctrl-D leaves, {HELP} tells more.")
    terminal = Terminal()
    while (line := terminal.ask()) is not None:
        yield line


@contextmanager
def _own_database(recipe: Recipe, database: Path | None) -> Iterator[Recipe]:
    """The recipe over a person's file; its list of questions holds only a stand-in."""
    if database is None:
        yield recipe
        return
    if "database" not in type(recipe.environment).model_fields:
        raise UsageError(f"environment {recipe.environment.name} works on no --database.")
    with TemporaryDirectory() as folder:
        questions = Path(folder) / "questions.jsonl"
        questions.write_text(json.dumps({"question": STAND_IN, "sql": "SELECT 1"}), "utf-8")
        own = {"database": database, "questions": questions}
        environment = recipe.environment.model_copy(update=own)
        yield recipe.model_copy(update={"environment": environment})
