"""Alarms over metric rows: what looks sick, in plain words, with the usual cure. No torch.

Each alarm is a function of the history that returns the figures in words, or None. Levels are
medians, noise is a median absolute deviation, and an alarm needs several iterations in a row
(``patience``), so that neither an outlier nor the wander of a small rollout raises one. Reward
hacking: Amodei et al. 2016 (arXiv:1606.06565); entropy and repetition before a collapse: RAGEN
(arXiv:2504.20073).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

KEPT = 100
"""Iterations of history that alarms look at."""
COOL_DOWN = 5
"""Iterations for which an alarm stays silent once raised: a cure needs time to show."""
BASE = 4
"""Least number of values that make a usual level."""
HIGH_KL, SURGING_KL = 0.5, 0.2
"""Nats per token: too much whatever was usual; and below this no surge."""
EXTREME_KL = 1.0
"""Nats per token: too much even for an actor that gets better on the way."""
HIGH_CLIP_FRACTION = 0.3
LOW_ENTROPY = 0.15
"""As a share of the highest level that the entropy had."""
SUCCEEDS = 0.9
"""An actor that is sure and succeeds this often is not sick."""
SPIKE, HIGH_NORM = 8.0, 1.0
"""A gradient norm of so many times the usual; and below this no spike."""
UNDEFINED = ("critic/explained_variance", "critic/auc")
"""Figures that are rightly nan at times, where returns do not vary."""
FORGOTTEN = 0.25
"""Share of the clean checks: so many more failed than of the SFT actor are too many."""
_WATCHED = ("actor/", "clean/", "critic/", "dropped/", "episode/", "evaluation/", "reward/")


@dataclass(frozen=True)
class History:
    """The latest rows, oldest first."""

    rows: Sequence[Mapping[str, float]]
    held_out: int
    """Episodes of each evaluation."""
    max_perplexity: float = math.inf
    """Most that the clean dialogues' perplexity may be, as a multiple of the SFT actor's."""

    def series(self, name: str) -> list[float]:
        """The finite values of a figure; none where the newest row lacks it: it tells no news."""
        if name not in self.rows[-1]:
            return []
        found = [row[name] for row in self.rows if name in row]
        return [value for value in found if math.isfinite(value)]


def noise(values: Sequence[float]) -> float:
    """Standard deviation about a slow trend: 1.4826·MAD of the steps, over √2; 0 of under 3."""
    if len(values) < 3:
        return 0.0
    steps = [b - a for a, b in pairwise(values)]
    middle = median(steps)
    return 1.4826 * median(abs(s - middle) for s in steps) / math.sqrt(2)


def levels(values: Sequence[float], size: int = BASE) -> list[float]:
    """Running medians of ``size`` values; none of fewer."""
    return [median(values[i : i + size]) for i in range(len(values) - size + 1)]


def kl_surge(history: History) -> str | None:
    """Two in a row above half a nat per token, or far above the usual and above all there was.

    (It begins at zero and grows while the actor learns, so a level of long ago is no measure, and
    an actor that succeeds, or does so more often than at first, may go twice as far.)
    """
    kl = history.series("actor/kl")
    past, recent = kl[:-2][-2 * BASE :], kl[-2:]
    if len(recent) < 2:
        return None
    well = _learns(history) or _succeeds(history)
    bound, least = (EXTREME_KL, HIGH_KL) if well else (HIGH_KL, SURGING_KL)
    if len(past) >= BASE:
        usual = median(past[-BASE:])
        far = max(least, 4 * usual, usual + 6 * noise(past), 2 * max(past))
        bound = min(bound, far)
    told = f", usually {median(past[-BASE:]):.3g}" if past else ""
    return f"actor/kl {recent[-1]:.3g}{told}" if min(recent) > bound else None


def _learns(history: History) -> bool:
    """Whether the last three iterations succeeded clearly more often than the first three."""
    success = history.series("episode/success")
    return len(success) >= BASE and median(success[-3:]) > median(success[:3]) + 0.05


def reward_collapse(history: History) -> str | None:
    """Far below the highest level, measured by the leap, by the noise and by that level."""
    reward = history.series("reward/total")
    if len(reward) < 2 * BASE:
        return None
    smooth = levels(reward, 3)
    first, peak, now = smooth[0], max(smooth), smooth[-1]
    bound = max(0.6 * (peak - first), 5 * noise(reward), 0.25 * abs(peak))
    fallen = peak - now > bound and max(reward[-3:]) < peak
    return f"reward/total {now:.3g} after {peak:.3g}, at first {first:.3g}" if fallen else None


def reward_hacking(history: History) -> str | None:
    """Held-out success fell by more than chance while training pays as much, elsewhere."""
    told = history.series("evaluation/success")
    places = [i for i, row in enumerate(history.rows) if "evaluation/success" in row]
    if len(told) < 2 or len(told) != len(places):
        return None
    best = max(range(len(told) - 1), key=lambda i: told[i])
    middle = (told[best] + told[-1]) / 2
    chance = math.sqrt(2 * max(middle * (1 - middle), 0.0) / history.held_out)
    if told[best] - told[-1] <= max(0.05, 2.5 * chance):
        return None
    then = history.rows[max(places[best] + 1 - BASE, 0) : places[best] + 1]
    if _gain("reward/total", then, history) < -1:
        return None
    fell = f"evaluation/success {told[-1]:.2f} after {told[best]:.2f}"
    names = [n for n in history.rows[-1] if n.startswith("reward/") and _is_dense(n)]
    rises = {n: _rise(n, then, history) for n in names if _gain(n, then, history) > 2}
    if name := max(rises, key=lambda n: rises[n], default=None):
        return f"{fell}, while {name} rose by {rises[name]:.3g} per episode"
    if _gain("reward/total", then, history) > 2:
        rise = _rise("reward/total", then, history)
        return f"{fell}, while reward/total rose by {rise:.3g} per episode"
    return None


def _is_dense(name: str) -> bool:
    return name not in ("reward/total", "reward/success") and "/capped_" not in name


def _rise(name: str, then: Sequence[Mapping[str, float]], history: History) -> float:
    """Median of the last rows less that of those of then."""
    now = [row[name] for row in history.rows[-BASE:] if name in row]
    before = [row[name] for row in then if name in row]
    return median(now) - median(before) if now and before else 0.0


def _gain(name: str, then: Sequence[Mapping[str, float]], history: History) -> float:
    """The rise in units of its noise, and no less than a hundredth of success."""
    return _rise(name, then, history) / max(noise(history.series(name)), 0.01)


def entropy_collapse(history: History) -> str | None:
    """Three in a row at a small share of the highest level, without success."""
    entropy = history.series("actor/entropy")
    tops = levels(entropy[:-3])
    if not tops or max(entropy[-3:]) >= LOW_ENTROPY * max(tops) or _succeeds(history):
        return None
    return f"actor/entropy {entropy[-1]:.2g} after {max(tops):.2g}"


def template_collapse(history: History) -> str | None:
    """Tasks that differ are answered alike, without success."""
    return None if _succeeds(history) else _risen(history, "episode/template", 0.25)


def _succeeds(history: History) -> bool:
    """Whether the last three iterations hardly ever failed."""
    success = history.series("episode/success")[-3:]
    return bool(success) and median(success) >= SUCCEEDS


def repetition(history: History) -> str | None:
    """Loops per episode, repeated calls per turn, or runs of words that a reply said before."""
    bounds = {"episode/loops": 0.25, "episode/repeated_calls": 0.2, "episode/babble": 0.2}
    found = (_risen(history, name, least) for name, least in bounds.items())
    return next(filter(None, found), None)


def invalid_actions(history: History) -> str | None:
    """Per turn."""
    return _risen(history, "episode/invalid_actions", 0.2)


def out_of_budget(history: History) -> str | None:
    """Per episode."""
    return _risen(history, "episode/out_of_budget", 0.25)


def drops(history: History) -> str | None:
    """Dropped episodes as a share of all, whatever action they were dropped at."""
    shares = [
        sum(value for name, value in row.items() if name.startswith("dropped/"))
        for row in history.rows
    ]
    summed = [{"episode/drop_rate": share} for share in shares]
    return _risen(History(summed, history.held_out), "episode/drop_rate", 0.1)


def _risen(history: History, name: str, least: float) -> str | None:
    """Three in a row above the lowest level by ``least`` and by five times the noise."""
    values = history.series(name)
    lows = levels(values[:-3])
    if not lows or min(values[-3:]) <= min(lows) + max(least, 5 * noise(values[:-3])):
        return None
    return f"{name} {values[-1]:.2f}, before {min(lows):.2f}"


def explained_variance(history: History) -> str | None:
    """Six in a row below zero, and not by a hair."""
    values = history.series("critic/explained_variance")[-6:]
    sick = len(values) == 6 and max(values) < 0 and median(values) < -0.05
    return f"critic/explained_variance {values[-1]:.2f}, six times below zero" if sick else None


def clip_fraction(history: History) -> str | None:
    """Three in a row above a bound."""
    values = history.series("actor/clip_fraction")[-3:]
    sick = len(values) == 3 and min(values) > HIGH_CLIP_FRACTION
    return f"actor/clip_fraction {values[-1]:.2f}, usually below 0.2" if sick else None


def gradient_spike(history: History) -> str | None:
    """One is enough: the mean over an iteration's updates has leapt, beyond all there was.

    (Where every episode succeeds nothing is learned and the norm is next to nothing; the next
    failure brings it back to where it was, and no higher.)
    """
    norms = history.series("actor/grad_norm")
    past = norms[:-1][-2 * BASE :]
    if len(past) < BASE:
        return None
    bound = max(SPIKE * median(past), 2 * max(norms[:-1]), HIGH_NORM)
    if norms[-1] <= bound:
        return None
    return f"actor/grad_norm {norms[-1]:.3g}, usually {median(past):.3g}"


def forgetting(history: History) -> str | None:
    """Of what stage 1 taught, apart from the task: fluency, the form of calls, instructions."""
    told = history.series("clean/perplexity_ratio")[-1:]
    if told and told[0] > history.max_perplexity:
        return f"clean/perplexity_ratio {told[0]:.3g}, allowed {history.max_perplexity:g}"
    lost, row = history.series("clean/lost")[-1:], history.rows[-1]
    if not lost or lost[0] <= FORGOTTEN:
        return None
    names = ("clean/format", "clean/instructions")
    now = ", ".join(f"{name} {row[name]:.2f}" for name in names if name in row)
    return f"{now}: {lost[0]:.2f} less than the SFT actor"


def non_finite(history: History) -> str | None:
    """Any figure of the newest row that should never be nan or infinite."""
    row = history.rows[-1]
    bad = [n for n, v in row.items() if n not in UNDEFINED and not math.isfinite(v)]
    return ", ".join(f"{name} {row[name]}" for name in bad) or None


@dataclass(frozen=True)
class Alarm:
    """What is looked for, and what it says to a person."""

    look: Callable[[History], str | None]
    means: str
    cure: str


ALARMS: Mapping[str, Alarm] = {
    "kl_surge": Alarm(
        kl_surge,
        "the actor leaps away from its reference",
        "lower rl.actor.learning_rate, or raise rl.ppo.kl_coef or set rl.ppo.kl_target",
    ),
    "reward_collapse": Alarm(
        reward_collapse,
        "the reward leapt and has fallen again",
        "lower rl.actor.learning_rate and go back to the best checkpoint (rl.keep: best)",
    ),
    "reward_hacking": Alarm(
        reward_hacking,
        "training reward rises while held-out success falls: the actor farms a reward",
        "read its trajectories, lower that component's weight or cap it in rl.rewards.episode_caps",
    ),
    "entropy_collapse": Alarm(
        entropy_collapse,
        "the actor always says the same, without success",
        "raise rl.ppo.entropy_coef and rl.ppo.entropy_coef_final, or lower rl.actor.learning_rate",
    ),
    "template_collapse": Alarm(
        template_collapse,
        "the actor says the same whatever its task is",
        "raise rl.ppo.entropy_coef and rl.ppo.kl_coef, or lower rl.actor.learning_rate",
    ),
    "repetition": Alarm(
        repetition,
        "the actor repeats itself more and more",
        "raise the penalty rl.rewards.weights.repeated, or lower rl.actor.learning_rate",
    ),
    "explained_variance": Alarm(
        explained_variance,
        "the critic is worse than a constant",
        "lower rl.critic.learning_rate, or raise rl.critic.steps and rl.critic.warm_up",
    ),
    "clip_fraction": Alarm(
        clip_fraction,
        "updates run far past the clip range",
        "lower rl.actor.learning_rate or rl.ppo.epochs",
    ),
    "invalid_actions": Alarm(
        invalid_actions,
        "more and more actions cannot be carried out",
        "raise rl.ppo.sft_coef to mix SFT in, or the penalty rl.rewards.weights.invalid",
    ),
    "out_of_budget": Alarm(
        out_of_budget,
        "more and more episodes run into a limit",
        "look at what the last turns repeat; lower rl.ppo.discount to pay for short episodes",
    ),
    "drops": Alarm(
        drops,
        "more and more episodes are lost to faults of the machinery",
        "see dropped/* for the action they fail at: the actor may have found a way out",
    ),
    "gradient_spike": Alarm(
        gradient_spike,
        "the actor's gradient is many times its usual size",
        "lower rl.actor.max_grad_norm or rl.actor.learning_rate, and look at the newest rewards",
    ),
    "forgetting": Alarm(
        forgetting,
        "the actor forgets what stage 1 taught it",
        "raise rl.ppo.sft_coef (rl.ppo.sft_data: sft) or rl.ppo.kl_coef, or lower the rate",
    ),
    "non_finite": Alarm(
        non_finite,
        "a figure is not finite",
        "look at the rewards of the newest trajectories; lower the rates of actor and critic",
    ),
}


class Monitor:
    """Keeps the history, row by row, and tells which alarms it raises."""

    def __init__(self, held_out: int, max_perplexity: float = math.inf) -> None:
        """``held_out``: episodes of each evaluation, which say what chance can do there."""
        self.held_out, self.max_perplexity = held_out, max_perplexity
        self.rows: list[dict[str, float]] = []
        self.steps: list[int] = []
        """The iteration of each row."""
        self.count = 0
        """Iterations so far."""
        self.silent: dict[str, int] = {}
        """Iterations for which an alarm says nothing yet."""

    def observe(self, row: Mapping[str, float]) -> dict[str, str]:
        """Take one iteration's figures in; alarm -> the figures in words."""
        watched = {n: float(v) for n, v in row.items() if n.startswith(_WATCHED)}
        self.count += 1
        self.rows = [*self.rows, watched][-KEPT:]
        self.steps = [*self.steps, self.count][-KEPT:]
        history = History(self.rows, self.held_out, self.max_perplexity)
        self.silent = {name: left - 1 for name, left in self.silent.items() if left > 1}
        found = {n: a.look(history) for n, a in ALARMS.items() if n not in self.silent}
        raised = {name: figures for name, figures in found.items() if figures}
        self.silent |= dict.fromkeys(raised, COOL_DOWN)
        return raised

    def go_back(self, step: int) -> None:
        """Keep the history up to an iteration: after a roll-back the rest of it speaks of another
        actor, while what was measured of this one stays the measure of what comes."""
        kept = sum(own <= step for own in self.steps)
        self.rows, self.steps = self.rows[:kept], self.steps[:kept]

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        now = {"rows": list(self.rows), "steps": list(self.steps), "count": self.count}
        return now | {"silent": dict(self.silent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.rows, self.steps = list(state["rows"]), list(state["steps"])
        self.count, self.silent = state["count"], dict(state["silent"])
