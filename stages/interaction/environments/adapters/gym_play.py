"""One episode of a foreign object, whatever its dialect of ``reset`` and ``step`` is."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_COLOURED = re.compile(r"\x1b\[[0-9;]*[1-9]m([^\x1b]*)\x1b\[0?m")
_STEP_LENGTHS = (4, 5)
"""What ``step`` may give: the older form and the present one."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Moment:
    """What came of one action."""

    text: str
    reward: float
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class GymPlay:
    """``step`` gives (obs, reward, terminated, truncated, info), or in the older form
    (obs, reward, done, info). Text in ``info["suffix"]`` belongs to the observation (GEM)."""

    def __init__(self, world: Any, *, cumulative: bool = False) -> None:
        self._world, self._cumulative = world, cumulative
        self._score = 0.0
        self.first_action = int(getattr(getattr(world, "action_space", None), "start", 0) or 0)
        """Discrete actions are counted from here."""

    def begin(self, seed: int, options: Any) -> str:
        """Reset; the first observation in words."""
        self._score = 0.0
        taken = _accepted(self._world.reset, {"seed": seed, "options": options})
        if "seed" not in taken and callable(set_seed := getattr(self._world, "seed", None)):
            set_seed(seed)
        made = self._world.reset(**taken)
        observation, info = made if _with_info(made) else (made, {})
        if observation is None:
            raise TypeError("reset() gave nothing; expected (observation, info)")
        return self._text(observation, info)

    def act(self, move: Any) -> Moment:
        """One step."""
        made = self._world.step(move)
        if not isinstance(made, Sequence) or len(made) not in _STEP_LENGTHS:
            raise TypeError(
                f"step() gave {'nothing' if made is None else repr(made)[:60]}; expected "
                "(observation, reward, terminated, truncated, info)"
            )
        observation, reward, *flags, info = made
        done = bool(flags[0])
        cut = bool(flags[1]) if len(flags) > 1 else bool(info.get("TimeLimit.truncated"))
        terminated = done and not (cut and len(flags) == 1)
        return Moment(
            self._text(observation, info), self._earned(float(reward)), terminated, cut, info
        )

    def close(self) -> None:
        """Free what the object holds."""
        if callable(close := getattr(self._world, "close", None)):
            close()

    def _earned(self, reward: float) -> float:
        if not self._cumulative:
            return reward
        earned, self._score = reward - self._score, reward
        return earned

    def _text(self, observation: Any, info: Mapping[str, Any]) -> str:
        suffix = info.get("suffix")
        return self._shown(observation) + (suffix if isinstance(suffix, str) else "")

    def _shown(self, observation: Any) -> str:
        """Text as it is, else what the object renders as text, else the value written out."""
        if isinstance(observation, str):
            return observation
        if callable(render := getattr(self._world, "render", None)):
            drawn = render() if getattr(self._world, "render_mode", "ansi") == "ansi" else None
            if isinstance(drawn, str):
                return _uncoloured(drawn)
        return json.dumps(observation, default=_plain)


class TextArenaPlay:
    """``step(text)`` gives (done, info); rewards per seat come from ``close()`` at the end.

    The actor has seat 0; ``opponent`` (observation -> move) plays the others. Every episode gets
    a new object: the package's wrappers remember the story of a game that was left.
    """

    first_action = 0

    def __init__(
        self, make: Callable[[], Any], opponent: Callable[[str], str] | None = None
    ) -> None:
        self._make, self._opponent = make, opponent
        self._world = make()
        self._told = ""

    def begin(self, seed: int, options: Any) -> str:
        """Reset for as many seats as ``options`` says (1, or 2 with an opponent)."""
        seats = int((options or {}).get("num_players", 2 if self._opponent else 1))
        if seats > 1 and self._opponent is None:
            raise ValueError("several seats need environment.opponent")
        self._world = self._make()
        self._world.reset(num_players=seats, seed=seed)
        self._told = ""
        return self._heard()

    def act(self, move: str) -> Moment:
        """The actor's move, then those of the others until it is the actor's turn again."""
        done, _ = self._world.step(move)
        while not done:
            seat, observation = self._world.get_observation()
            if seat == 0:
                return Moment(self._new(str(observation)), 0.0)
            assert self._opponent is not None
            done, _ = self._world.step(self._opponent(str(observation)))
        rewards, info = self._world.close()
        own = (info or {}).get(0) or {}
        return Moment(str(own.get("reason") or ""), float((rewards or {}).get(0, 0.0)), True)

    def close(self) -> None:
        """Nothing is held: closing a game is how it tells its rewards."""

    def _heard(self) -> str:
        while True:
            seat, observation = self._world.get_observation()
            if seat == 0:
                return self._new(str(observation))
            assert self._opponent is not None
            self._world.step(self._opponent(str(observation)))

    def _new(self, observation: str) -> str:
        """Some wrappers tell the whole story each time: only what is new of it is shown."""
        known = self._told
        self._told = observation
        if known and observation.startswith(known):
            return observation[len(known) :].lstrip("\n")
        return observation


def _accepted(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a function takes; those that are None are left out."""
    parameters = inspect.signature(function).parameters.values()
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    return {k: v for k, v in given.items() if v is not None and (any_keyword or k in names)}


def _uncoloured(text: str) -> str:
    """Colours mark where one stands: what is coloured gets brackets, other escapes go."""
    return _ESCAPE.sub("", _COLOURED.sub(r"[\1]", text)).strip("\n")


def _with_info(made: Any) -> bool:
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)


def _plain(value: Any) -> Any:
    """numpy's and other values for JSON."""
    if callable(to_list := getattr(value, "tolist", None)):
        return to_list()
    return str(value)
