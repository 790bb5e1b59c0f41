"""The ``service`` environment (F5-F7): a customer, a policy, a database behind tools."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.environments.service.desk import Desk, NoSuchRecord
from stages.interaction.environments.service.domains import DOMAINS, policy_text
from stages.interaction.environments.service.episode import Progress
from stages.interaction.environments.service.expert import Expert
from stages.interaction.environments.service.options import ServiceOptions
from stages.interaction.environments.service.relabel import relabelled
from stages.interaction.environments.service.rubric import RubricJudge
from stages.interaction.environments.service.tasks import Case, generate
from stages.interaction.environments.service.tools import problem, tools_of
from stages.interaction.environments.service.users import Card, make_user
from stages.interaction.speaker import make_speaker
from stages.interaction.trajectory import Action, ChecklistItem, Message, ToolCall, Trajectory

NOTHING_SAID = "error: the reply is empty; say something to the customer, or call a tool"


class ServiceEnvironment:
    """Plain words go to the customer, calls to the database; the customer ends the episode.

    Success by rules: every record is as it should be, what was to be told was told, and no rule
    of the policy was broken. With a model judge, success is that all statements of its rubric
    hold; the rules' components stay.
    """

    name = "service"

    def __init__(self, options: ServiceOptions | None = None) -> None:
        self.options = options or ServiceOptions()
        self.max_turns = self.options.max_turns
        self._user = make_user(self.options.user)
        judge = self.options.judge
        self._judge = None
        if judge.kind == "model":
            speaker = make_speaker(judge.speaker)
            self._judge = RubricJudge(speaker, judge.rubric, retries=judge.retries)
        self._progress: Progress | None = None

    # ---- tasks and demonstrations

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split."""
        return generate(self.options, split, count, seed)

    def demonstrate(self, task: Task, seed: int) -> Expert:
        """The scripted agent for one episode, as imperfect as ``options.expert`` says."""
        rng = random.Random(f"expert/{task.id}/{seed}")
        return Expert(DOMAINS[task.payload["domain"]], self.options.expert, rng)

    def alter_gold(self, task: Task) -> Task:
        """The task with another right ending: nothing an actor sees may change."""
        expected = {n: {**row, "owner": "nobody"} for n, row in task.payload["expected"].items()}
        told = [{**row, "words": ["nothing"]} for row in task.payload["told"]]
        return replace(task, payload={**task.payload, "expected": expected, "told": told})

    def relabel(self, task: Task, trajectory: Trajectory) -> Task | None:
        """The wish that the end of an episode fulfils; only where customer and judge are rules."""
        if self.options.user.kind != "scripted" or self._judge is not None:
            return None
        replies = [turn.action for turn in trajectory.turns]
        return relabelled(task, trajectory, lambda other: _succeeds(self.options, other, replies))

    # ---- the episode

    def reset(self, task: Task) -> Reset:
        """The policy and the customer's first words."""
        case = Case.of(task)
        self._key = task.id
        self._over, self._agreed, self._changed = False, False, False
        self._card = Card.of(case)
        self._progress = Progress(case, Desk(case.domain, case.records))
        opening = self._user.open(self._card, task.id)
        self._progress.customer(opening)
        policy = [_message("system", policy_text(case.domain))] if self.options.show_policy else []
        self._transcript: list[Message] = [_message("user", opening)]
        return Reset(
            messages=(*policy, *self._transcript),
            tools=tools_of(case.domain),
            goal=opening,
            checklist=self._checklist(),
            privileged=self._progress.facts,
        )

    def step(self, action: Action) -> Step:
        """Pass words on to the customer, or carry out the calls in order."""
        if self._progress is None:
            raise RuntimeError("step() before reset()")
        self._transcript.append(_message("assistant", action.text))
        if action.error is not None or not action.text.strip():
            text = f"error: {action.error}" if action.error else NOTHING_SAID
            return self._outcome([_message("tool", text)], {}, {"malformed": True})
        if not action.calls:
            return self._talk(action.text.strip())
        messages: list[Message] = []
        rewards: dict[str, float] = {}
        info: dict[str, Any] = {"tool_error": None}
        for call in action.calls:
            text, gained, error = self._carry_out(call)
            messages.append(_message("tool", text, call.name))
            for name, value in gained.items():
                rewards[name] = min(1.0, rewards.get(name, 0.0) + value)
            info |= {"tool": call.name, "tool_error": error or info["tool_error"]}
        return self._outcome(messages, rewards, {**info, "invalid": bool(rewards.get("invalid"))})

    def close(self) -> None:
        """Nothing is held."""
        self._progress = None

    def _talk(self, said: str) -> Step:
        assert self._progress is not None
        rewards = dict(self._progress.agent(said))
        reply = self._user.reply(said)
        self._over = reply.over
        for name, value in self._progress.customer(reply.text).items():
            rewards[name] = rewards.get(name, 0.0) + value
        self._agreed = bool(self._progress.agreed) or self._agreed
        info = {"user": dict(reply.health)} if reply.health else {}
        return self._outcome([_message("user", reply.text)], rewards, info)

    def _carry_out(self, call: ToolCall) -> tuple[str, Mapping[str, float], str | None]:
        """One call: (what it returns, rewards, error of the tool)."""
        assert self._progress is not None
        desk = self._progress.desk
        wrong = problem(call, desk.domain)
        if wrong is not None:
            return f"error: {wrong}", {"invalid": 1.0}, None
        try:
            if call.name == desk.domain.finder:
                number = str(call.arguments[desk.domain.noun])
                return desk.find(number), self._progress.looked_up(number), None
            change = desk.planned(call)
        except NoSuchRecord as error:
            return f"error: {error}", {}, str(error)
        rewards = self._progress.changed(change)
        self._changed = True
        return desk.apply(change), rewards, None

    def _checklist(self) -> tuple[ChecklistItem, ...]:
        assert self._progress is not None
        return (
            ("found", bool(self._progress.found)),
            ("agreed", self._agreed),
            ("changed", self._changed),
        )

    def _outcome(
        self, messages: list[Message], rewards: Mapping[str, float], info: Mapping[str, Any]
    ) -> Step:
        assert self._progress is not None
        self._transcript += messages
        paid = dict(rewards) | (self._final() if self._over else {})
        return Step(
            messages=tuple(messages),
            rewards=paid,
            terminated=self._over,
            success=self._over and paid["success"] == 1.0,
            checklist=self._checklist(),
            privileged=self._progress.facts,
            info={"invalid": False, **info},
        )

    def _final(self) -> dict[str, float]:
        """The components of the end, by rules, and a model's verdict on top."""
        assert self._progress is not None
        paid = self._progress.final()
        if self._judge is None:
            return paid
        domain, wishes = self._progress.case.domain, self._card.wishes
        wished = "; ".join(
            f"{self._card.intent(w).wish} ({', '.join(self._card.facts(w).values())})"
            for w in wishes
        )
        share = self._judge.share(policy_text(domain), wished, self._transcript, key=self._key)
        return {**paid, "judge": share, "success": float(share == 1.0)}


def _message(role: str, content: str, tool: str | None = None) -> Message:
    named = {"name": tool} if tool else {}
    return {"role": role, **named, "content": content}


def _succeeds(options: ServiceOptions, task: Task, actions: Sequence[Action]) -> bool:
    """Whether the actions, up to the end of the conversation, succeed in a task."""
    world = ServiceEnvironment(options)
    world.reset(task)
    for number, action in enumerate(actions, start=1):
        step = world.step(action)
        if step.terminated:
            return step.success and number == len(actions)
    return False
