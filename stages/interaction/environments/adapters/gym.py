"""Gymnasium-like objects: ``reset`` and ``step`` with observations and actions of many kinds.

Text goes in and out: an observation is shown as it is, rendered, or written out; an action is the
reply itself, or the number or name of a discrete action in it. A reply that names no action is
told off and never reaches the world.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.environments.adapters.adapter import Adapter, task_row
from stages.interaction.environments.adapters.entry import build, load_entry
from stages.interaction.environments.adapters.gym_play import GymPlay, Moment, TextArenaPlay
from stages.interaction.environments.adapters.options import GymnasiumOptions
from stages.interaction.environments.adapters.task_rows import task_seed
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message

ACT = "act"
"""The tool that a world of discrete actions offers."""
_NUMBER = re.compile(r"(?<![\w.-])\d{1,9}(?![\w.])")


class GymnasiumEnvironment(Adapter):
    """Plays one object of the person's."""

    options: GymnasiumOptions

    def __init__(self, options: GymnasiumOptions) -> None:
        super().__init__(options)
        self.options = options
        with self._random.lent():
            world = _made(options)
        if hasattr(world, "get_observation"):
            opponent = load_entry(options.opponent, "opponent") if options.opponent else None
            self._play: GymPlay | TextArenaPlay = TextArenaPlay(lambda: _made(options), opponent)
        else:
            self._play = GymPlay(world, cumulative=options.cumulative_reward)
        self._names = _action_names(world, options)

    def reset(self, task: Task) -> Reset:
        """Start an episode; the task's seed and its ``options`` go to the world."""
        self._begin()
        self._random.restart(task_seed(task))
        with self._random.lent():
            shown = self._play.begin(task_seed(task), task_row(task).get("options"))
        rules = "\n".join(filter(None, (self.options.prompt, self._menu())))
        text = "\n\n".join(filter(None, (rules, shown)))
        return Reset(({"role": "user", "content": text},), self._tools(), rules or text)

    def step(self, action: Action) -> Step:
        """One action of the world, if the reply names one."""
        self._turns += 1
        move = self._move(action)
        if move is None:
            told = f"invalid action; expected {self._expected()}"
            return Step(_message(action, told), {"invalid": 1.0}, info={"invalid": True})
        with self._random.lent():
            moment = self._play.act(move)
        rewards = self._paid(moment.reward)
        over = moment.terminated or moment.truncated
        won = over and self._won(moment)
        if over:
            rewards.setdefault("success", 0.0)
        # A world's own limit of time that is reached with its goal met cuts nothing off.
        ended = moment.terminated or won
        return Step(
            _message(action, moment.text or ("the episode is over" if over else "nothing to see")),
            rewards,
            terminated=ended,
            truncated=moment.truncated and not ended,
            success=won,
        )

    def close(self) -> None:
        """Close the world."""
        self._play.close()

    def _won(self, moment: Moment) -> bool:
        if self.options.success_key is not None:
            return bool(moment.info.get(self.options.success_key))
        return self._solved

    def _move(self, action: Action) -> Any:
        """What to hand to the world; None where the reply names no action."""
        text = action.text
        if self._names and action.calls and action.calls[0].name == ACT:
            text = str(action.calls[0].arguments.get("action", ""))
        if not self._names:
            return text.strip() or None
        found = _named(text, self._names)
        return None if found is None else self._play.first_action + found

    def _tools(self) -> tuple[dict[str, Any], ...]:
        if not self._names:
            return ()
        choice = {"type": "string", "enum": list(self._names)}
        parameters = {"type": "object", "properties": {"action": choice}, "required": ["action"]}
        function = {"name": ACT, "description": "Take one action.", "parameters": parameters}
        return ({"type": "function", "function": function},)

    def _menu(self) -> str:
        return f"Actions: {', '.join(self._names)}." if self._names else ""

    def _expected(self) -> str:
        return f"one of {', '.join(self._names)}" if self._names else "a reply with text"


def _made(options: GymnasiumOptions) -> Any:
    """The object; an id is gymnasium's own registry's."""
    name = options.gymnasium
    if ":" in name and "/" not in name.partition(":")[0]:
        return build(load_entry(name, "gymnasium"), name, "gymnasium", **options.arguments)
    try:
        import gymnasium
    except ImportError:
        raise UsageError(
            f"environment.gymnasium = {name!r} is an id of the package gymnasium, which is not "
            "installed; install it, or give module:factory of your own."
        ) from None
    arguments = {"render_mode": "ansi", **options.arguments}
    try:
        return gymnasium.make(name, **arguments)
    except TypeError:  # the world renders no text
        return build(gymnasium.make, name, "gymnasium", id=name, **options.arguments)
    except Exception as error:
        raise UsageError(
            f"environment.gymnasium = {name!r} cannot be made ({error}); give a registered id or "
            "module:factory."
        ) from error


def _action_names(world: Any, options: GymnasiumOptions) -> tuple[str, ...]:
    """Names of discrete actions, numbers where nobody named them; none for text."""
    count = getattr(getattr(world, "action_space", None), "n", None)
    if options.actions == "text" or (options.actions == "auto" and count is None):
        return ()
    names = options.action_names
    if count is not None and names and len(names) != int(count):
        raise UsageError(
            f"environment.action_names has {len(names)} names, but the world has {count} actions."
        )
    if count is None and not names:
        raise UsageError("environment.actions = discrete needs action_names here; list them.")
    return names or tuple(str(k) for k in range(int(count or 0)))


def _named(text: str, names: Sequence[str]) -> int | None:
    """The first action a reply names, by word or number."""
    places = [
        (found.start(), -len(name), k)
        for k, name in enumerate(names)
        if (found := _find(name, text))
    ]
    if places:
        return min(places)[2]
    number = _NUMBER.search(text)
    return int(number[0]) if number and int(number[0]) < len(names) else None


def _find(name: str, text: str) -> re.Match[str] | None:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)


def _message(action: Action, text: str) -> tuple[Message, ...]:
    """The world answers a tool call as a tool, words as the user."""
    return ({"role": "tool" if action.calls else "user", "content": text},)
