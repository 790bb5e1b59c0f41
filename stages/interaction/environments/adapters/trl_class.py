"""Environment classes written for TRL's GRPOTrainer (``environment_factory``), duck-typed.

Construct once, ``reset(**row)`` often; public methods are tools; the episode ends when the actor
answers without a call; ``get_reward`` and reward functions judge it once, at its end. TRL's own
loop ends it so too where the calls of a reply cannot be read.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from stages.common.errors import UsageError
from stages.common.messages import plain_text
from stages.interaction.environments.adapters.adapter import Adapter, task_row
from stages.interaction.environments.adapters.async_loop import run_async
from stages.interaction.environments.adapters.entry import build, load_entry
from stages.interaction.environments.adapters.options import TrlOptions
from stages.interaction.environments.adapters.task_rows import task_seed
from stages.interaction.environments.adapters.trl_tools import carry_out, schemas, tool_methods
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message

_NO_PROMPT = [{"role": "user", "content": ""}]
"""What TRL shows before ``reset`` has spoken where there is no dataset."""


class TrlEnvironment(Adapter):
    """Plays an instance of the person's class."""

    options: TrlOptions

    def __init__(self, options: TrlOptions) -> None:
        super().__init__(options)
        self.options = options
        given: Any = options.trl
        entries: dict[Any, str] = given if isinstance(given, dict) else {None: given}
        self._instances = {n: build(load_entry(e, "trl"), e, "trl") for n, e in entries.items()}
        self._functions = [load_entry(entry, "reward_funcs") for entry in options.reward_funcs]
        self._weights = options.reward_weights or (1.0,) * len(self._functions)
        for name, instance in self._instances.items():
            self._require_contract(instance, entries[name])
        self._tools = {name: schemas(tool_methods(i)) for name, i in self._instances.items()}

    def reset(self, task: Task) -> Reset:
        """``reset(**row)``; what it says is appended to the last message of the prompt."""
        self._begin()
        own = "row" in task.payload  # without tasks of a person the instance owns the data
        self._row = copy.deepcopy(task_row(task) if own else {"prompt": _NO_PROMPT})
        name = self._chosen()
        self._instance = self._instances[name]
        self._completion: list[Message] = []
        self._random.restart(task_seed(task))
        keywords = dict(self._row)
        if isinstance(self.options.trl, dict):  # then the column is a control field
            keywords.pop("environment")
        with self._random.lent():
            said = self._instance.reset(**keywords)
        self._prompt = _with_observation(self._row.get("prompt", _NO_PROMPT), said)
        return Reset(tuple(self._prompt), self._tools[name], str(self._prompt[-1]["content"]))

    def step(self, action: Action) -> Step:
        """Run the calls of a reply; a reply without any, or the last one allowed, is the end."""
        self._turns += 1
        self._completion.append(_said(action))
        if not action.calls or self._last_turn:
            return self._end(terminated=not action.calls)
        with self._random.lent():
            messages, wrong = carry_out(tool_methods(self._instance), action.calls)
        self._completion += messages
        info = {"tool_error": "; ".join(wrong)} if wrong else {}
        if self.options.stop_when_done and getattr(self._instance, "done", False):
            return self._end(terminated=True, messages=tuple(messages), info=info)
        return Step(tuple(messages), info=info)

    def _chosen(self) -> str | None:
        if not isinstance(self.options.trl, dict):
            return None
        name = self._row.get("environment")
        if name not in self._instances:
            raise UsageError(
                f"a task has environment = {name!r}; expected one of {', '.join(self.options.trl)}."
            )
        return str(name)

    def _end(
        self,
        *,
        terminated: bool,
        messages: tuple[Message, ...] = (),
        info: Mapping[str, Any] | None = None,
    ) -> Step:
        """Judged once; at the limit of turns the episode is a failure unless it was solved."""
        with self._random.lent():
            reward, logged = self._judged()
        rewards = {"success": 0.0, **self._paid(reward)}
        return Step(
            messages,
            rewards,
            terminated=terminated or self._solved,
            success=self._solved,
            info={**(info or {}), **logged},
        )

    def _judged(self) -> tuple[float, dict[str, Any]]:
        """Sum of ``get_reward`` and the weighted reward functions; what they wished to log."""
        logged: dict[str, Any] = {}
        given: list[float] = []
        if callable(get_reward := getattr(self._instance, "get_reward", None)):
            given.append(_number(get_reward()))
        columns = {k: [v] for k, v in self._row.items() if k not in ("prompt", "completion")}
        for function, weight in zip(self._functions, self._weights, strict=True):
            values = _awaited(
                function(
                    prompts=[self._prompt],
                    completions=[self._completion],
                    completion_ids=[[]],
                    environments=[self._instance],
                    trainer_state=SimpleNamespace(global_step=0, max_steps=0, epoch=0.0),
                    log_extra=lambda column, values: logged.update({column: values[0]}),
                    log_metric=lambda name, value: logged.update({name: float(value)}),
                    **columns,
                )
            )
            given.append(weight * _number(values[0]))
        return sum(given), {"logged": logged} if logged else {}

    def _require_contract(self, instance: Any, entry: str) -> None:
        if not callable(getattr(instance, "reset", None)):
            raise UsageError(f"environment.trl: {entry} has no method reset.")
        if not self._functions and not callable(getattr(instance, "get_reward", None)):
            raise UsageError(
                f"environment.trl: {entry} has no get_reward, so nothing rewards its episodes; "
                "name functions in environment.reward_funcs."
            )


def _with_observation(prompt: Any, said: Any) -> list[Message]:
    """The prompt as text messages, what ``reset`` returned at the end of its last one."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    messages = [{**m, "content": plain_text("prompt", m.get("content"))} for m in prompt]
    messages[-1]["content"] += plain_text("environment.trl: reset", said)
    return messages


def _said(action: Action) -> Message:
    """A reply as TRL's parser would give it: words, and calls where there are any."""
    if not action.calls:
        return {"role": "assistant", "content": action.text}
    calls = [
        {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for c in action.calls
    ]
    words = action.text.partition("<tool_call>")[0].strip()
    content = "" if words.startswith(("{", "[")) else words
    return {"role": "assistant", "content": content, "tool_calls": json.loads(json.dumps(calls))}


def _awaited(value: Any) -> Any:
    return run_async(value) if inspect.iscoroutine(value) else value


def _number(value: Any) -> float:
    """A reward; None means that it does not apply."""
    value = _awaited(value)
    return 0.0 if value is None else float(value)
