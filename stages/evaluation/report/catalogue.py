"""Which figures are drawn together, in which order, and under which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "number", "seconds"]


@dataclass(frozen=True)
class Plot:
    """One place for curves. ``names`` are metrics, or the beginning of several: ``time/``."""

    title: str
    names: tuple[str, ...]
    note: str = ""
    unit: Unit = "number"
    stacked: bool = False
    whole: bool = False
    """The axis goes from 0 to 1."""
    but: tuple[str, ...] = ()
    """Beginnings of names that are shown elsewhere."""

    def holds(self, name: str) -> bool:
        """Whether a metric of this name is drawn here."""
        if any(name.startswith(other) for other in self.but):
            return False
        return any(name == own or (_is_group(own) and name.startswith(own)) for own in self.names)


def _is_group(own: str) -> bool:
    return own.endswith(("/", "_"))


Sections = Mapping[str, Sequence[Plot]]
RL: Sections = {
    "Does it learn?": (
        Plot(
            "Success",
            ("episode/success", "evaluation/success"),
            "Share of episodes that solve their task: in training, and on the same held-out "
            "tasks each time.",
            "share",
            whole=True,
        ),
        Plot(
            "Reward per episode",
            ("reward/total", "evaluation/return"),
            "In units of success = 1.",
        ),
        Plot(
            "Reward by component",
            ("reward/",),
            "What is paid besides success; one that rises alone is being farmed.",
            but=("reward/total", "reward/success", "reward/capped_"),
        ),
        Plot(
            "Held back by caps",
            ("reward/capped_",),
            "What components would have paid beyond their own caps.",
        ),
    ),
    "Is the actor steady?": (
        Plot("KL to the SFT actor", ("actor/kl",), "Nats per token; a leap is an alarm."),
        Plot(
            "Entropy",
            ("actor/entropy",),
            "Nats per token; near 0 the actor always says the same.",
        ),
        Plot(
            "Clip fraction",
            ("actor/clip_fraction",),
            "Tokens whose probability moved beyond the clip range; usually below 20 %.",
            "share",
        ),
        Plot("Gradient norm", ("actor/grad_norm",), "Of the actor, before clipping."),
        Plot(
            "Forgetting",
            ("clean/perplexity_ratio", "clean/lost"),
            "Perplexity on clean dialogues over the SFT actor's, and the share of checks lost.",
        ),
    ),
    "Does the critic help?": (
        Plot(
            "Explained variance",
            ("critic/explained_variance",),
            "On new episodes before the critic is fitted to them: 1 is perfect, 0 no better than "
            "a constant.",
        ),
        Plot("Critic loss", ("critic/loss", "critic/q_loss")),
        Plot("Age of the pool", ("pool/oldest_age", "critic/sample_age"), "In actor updates."),
    ),
    "How does it behave?": (
        Plot(
            "Turns per episode",
            ("episode/turns", "evaluation/turns"),
            "Longer is not better.",
        ),
        Plot("Tokens of the actor", ("episode/action_tokens",), "Per iteration."),
        Plot(
            "What goes wrong",
            (
                "episode/invalid_actions",
                "episode/repeated_calls",
                "episode/loops",
                "episode/out_of_budget",
                "episode/babble",
                "episode/template",
            ),
            "Invalid actions, repeated calls and babble per turn; loops, spent budgets and same "
            "words for other tasks per episode.",
            "share",
        ),
        Plot("Dropped episodes", ("dropped/",), "By the action they were lost at.", "share"),
    ),
    "What does it cost?": (
        Plot(
            "Seconds per iteration, by phase",
            ("time/",),
            unit="seconds",
            stacked=True,
            but=("time/tokens_per_s",),
        ),
        Plot("Tokens per second", ("time/tokens_per_s",), "Sampled in the rollout."),
    ),
}
SFT: Sections = {
    "Supervised fine-tuning": (
        Plot("Loss", ("sft/loss", "sft/validation_loss"), "Cross-entropy on the reply's tokens."),
        Plot(
            "Token accuracy",
            ("sft/token_accuracy", "sft/validation_token_accuracy"),
            "Share of the reply's tokens that the model would have chosen.",
            "share",
        ),
        Plot("Entropy", ("sft/entropy",), "Nats per token."),
        Plot("Gradient norm", ("sft/grad_norm",)),
        Plot("Learning rate", ("sft/learning_rate",)),
    ),
}
REWARD: Sections = {
    "Reward model": (
        Plot("Loss", ("reward/loss", "reward/held_out_loss"), "−log σ of the margin."),
        Plot(
            "Accuracy",
            ("reward/accuracy", "reward/held_out_accuracy"),
            "Share of pairs whose better reply scores higher.",
            "share",
        ),
        Plot("Margin", ("reward/margin",), "Mean score of the better less the worse reply."),
        Plot("Gradient norm", ("reward/grad_norm",)),
        Plot("Learning rate", ("reward/learning_rate",)),
    ),
}
SECTIONS: Mapping[str, Sections] = {"rl": RL, "sft": SFT, "reward": REWARD}
FIRST: Mapping[str, Sequence[str]] = {
    "rl": ("Success", "Reward per episode", "KL to the SFT actor", "Explained variance"),
    "sft": ("Loss", "Token accuracy"),
    "reward": ("Loss", "Accuracy"),
}
"""Shown before all others, on the first tab."""
LABELS: Mapping[str, str] = {
    "episode/success": "in training",
    "evaluation/success": "held out",
    "reward/total": "in training",
    "evaluation/return": "held out",
    "episode/turns": "in training",
    "evaluation/turns": "held out",
    "clean/perplexity_ratio": "perplexity ratio",
    "clean/lost": "checks lost",
    "sft/loss": "training rows",
    "sft/validation_loss": "held-out rows",
    "sft/token_accuracy": "training rows",
    "sft/validation_token_accuracy": "held-out rows",
    "reward/loss": "training pairs",
    "reward/held_out_loss": "held-out pairs",
    "reward/accuracy": "training pairs",
    "reward/held_out_accuracy": "held-out pairs",
}
"""What lines are called where their figure's own name would not tell them apart."""


def label_of(name: str) -> str:
    """A figure's name in words."""
    if name in LABELS:
        return LABELS[name]
    last = name.split("/", 1)[-1].removeprefix("capped_")
    return (last.removesuffix("_s") if name.startswith("time/") else last).replace("_", " ")
