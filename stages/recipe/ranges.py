"""Usual ranges of hyper-parameters, by model size (F27), and what to watch outside of them.

Learning rates fall with size: a model of half a million weights trained from scratch needs a
hundred times the rate of a pretrained 7B one. Sources: what the field uses for 7B-class models;
our own runs for the smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from stages.recipe.models import Recipe

Stage = Literal["sft", "reward", "rl"]


@dataclass(frozen=True)
class Usual:
    """A usual range, both ends included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value is usual (with room for rounding)."""
        return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Rate(Usual):
    """A usual range of learning rates, and the one taken when a recipe names none."""

    default: float

    def times(self, factor: float) -> Rate:
        """The same range, moved."""
        return Rate(self.low * factor, self.high * factor, self.default * factor)


@dataclass(frozen=True)
class SizeClass:
    """Learning rates and entropy bonus that suit models of up to ``parameters`` weights."""

    name: str
    parameters: float
    rates: dict[Stage, Rate]
    entropy: Usual


SIZES = (
    SizeClass(
        "tiny models",
        10e6,
        {
            "sft": Rate(1e-4, 3e-3, 5e-4),
            "reward": Rate(1e-4, 3e-3, 5e-4),
            "rl": Rate(3e-5, 5e-4, 3e-4),
        },
        Usual(0.0, 0.05),
    ),
    SizeClass(
        "models below 0.5B",
        0.5e9,
        {
            "sft": Rate(1e-5, 1e-3, 1e-4),
            "reward": Rate(5e-6, 5e-4, 5e-5),
            "rl": Rate(1e-6, 3e-4, 1e-5),
        },
        Usual(0.0, 0.05),
    ),
    SizeClass(
        "models of 0.5B to 3B",
        3e9,
        {
            "sft": Rate(5e-6, 1e-4, 2e-5),
            "reward": Rate(2e-6, 5e-5, 1e-5),
            "rl": Rate(1e-6, 1e-5, 2e-6),
        },
        Usual(0.01, 0.05),
    ),
    SizeClass(
        "7B-class models",
        float("inf"),
        {
            "sft": Rate(5e-6, 5e-5, 2e-5),
            "reward": Rate(2e-6, 2e-5, 1e-5),
            "rl": Rate(1e-6, 5e-6, 1e-6),
        },
        Usual(0.01, 0.05),
    ),
)

CLIP_RANGE = Usual(0.1, 0.2)
GAE_LAMBDA = Usual(0.9, 0.99)
KL_COEF = Usual(0.01, 0.1)
TRACE_BAR = Usual(1.0, 10.0)
TARGET_PERIOD = Usual(1, 10)
PRIORITY_EXPONENT = Usual(0.4, 1.0)
VF_COEF = Usual(0.5, 1.0)
ENCODER_RATE = Usual(1e-5, 1e-4)
IQL_STEPS = 300
"""Steps of a light critic after which the advantages of a pool's turns told good from bad."""
ADAPTER_RATE = 10
"""Adapters learn best at about ten times the rate of whole weights (Schulman et al. 2025, "LoRA
without regret")."""
# A pretrained model forgets when RL's rate comes near SFT's (F21).
_MOST_RL_OF_SFT = 0.1


def size_class(parameters: int, *, adapters: bool = False) -> SizeClass:
    """The class a model of this many weights belongs to, trained whole or by adapters."""
    size = next(size for size in SIZES if parameters <= size.parameters)
    if not adapters:
        return size
    rates = {stage: rate.times(ADAPTER_RATE) for stage, rate in size.rates.items()}
    return replace(size, name=f"adapters on {size.name}", rates=rates)


def default_learning_rate(stage: Stage, parameters: int, *, adapters: bool = False) -> float:
    """The rate a stage takes for a model of this size when the recipe names none."""
    return size_class(parameters, adapters=adapters).rates[stage].default


def learning_rates(recipe: Recipe, parameters: int) -> dict[Stage, float]:
    """The rate of each stage: the recipe's, else the default for the model's size."""
    adapters = recipe.model.lora is not None
    given: dict[Stage, float | None] = {
        "sft": recipe.sft.learning_rate,
        "reward": recipe.reward.learning_rate,
        "rl": recipe.rl.actor.learning_rate,
    }
    return {
        stage: default_learning_rate(stage, parameters, adapters=adapters) if rate is None else rate
        for stage, rate in given.items()
    }


def advice(recipe: Recipe, parameters: int, stage: Stage | None = None) -> list[str]:
    """One line for each value outside its usual range; empty when all is usual.

    ``parameters`` counts the weights of the model that is trained; ``stage`` keeps the lines about
    that stage's section of the recipe, each of which belongs to one stage.
    """
    size = size_class(parameters, adapters=recipe.model.lora is not None)
    ppo = recipe.rl.ppo
    # The bonus may fall to nothing in the end, at any size.
    final = Usual(0.0, size.entropy.high)
    rates = learning_rates(recipe, parameters)
    checks = [
        ("sft.learning_rate", rates["sft"], size.rates["sft"], "the validation loss for a rise"),
        ("reward.learning_rate", rates["reward"], size.rates["reward"], "the held-out accuracy"),
        ("rl.actor.learning_rate", rates["rl"], size.rates["rl"], "actor/kl for surges"),
        ("rl.ppo.clip_range", ppo.clip_range, CLIP_RANGE, "actor/clip_fraction and actor/kl"),
        ("rl.ppo.gae_lambda", ppo.gae_lambda, GAE_LAMBDA, "critic/explained_variance"),
        ("rl.ppo.kl_coef", ppo.kl_coef, KL_COEF, "actor/kl and episode/success together"),
        ("rl.ppo.entropy_coef", ppo.entropy_coef, size.entropy, "actor/entropy for a collapse"),
        ("rl.ppo.entropy_coef_final", ppo.entropy_coef_final, final, "actor/entropy for a rise"),
    ]
    checks += _critic_checks(recipe)
    critic = recipe.rl.critic
    if critic.shared:
        watch = "critic/explained_variance and episode/success together"
        checks.append(("rl.critic.vf_coef", critic.value_weight, VF_COEF, watch))
    lines = [_line(*check, size.name) for check in checks if not check[2].holds(check[1])]
    lines += _trunk_rate(recipe, size_class(parameters)) + _relations(recipe, rates, size)
    return [line for line in lines if stage is None or line.startswith(f"{stage}.")]


def _critic_checks(recipe: Recipe) -> list[tuple[str, float, Usual, str]]:
    """Of the options of the critic that are switched on."""
    critic, pool = recipe.rl.critic, recipe.rl.pool
    checks: list[tuple[str, float, Usual, str]] = []
    if critic.off_policy == "vtrace":
        checks += [
            # Below 1 even on-policy episodes are cut, and values lean towards the old policy.
            ("rl.critic.rho_bar", critic.rho_bar, TRACE_BAR, "critic/explained_variance"),
            ("rl.critic.c_bar", critic.c_bar, TRACE_BAR, "critic/effective_sample_size"),
        ]
    if critic.target_update == "periodic":
        watch = "critic/loss for jumps and critic/explained_variance"
        checks.append(("rl.critic.target_period", critic.target_period, TARGET_PERIOD, watch))
    if pool.sampling == "prioritised":
        watch = "critic/sample_age and critic/explained_variance"
        checks.append(
            ("rl.pool.priority_exponent", pool.priority_exponent, PRIORITY_EXPONENT, watch)
        )
    return checks


def _trunk_rate(recipe: Recipe, size: SizeClass) -> list[str]:
    """Of a critic that grows from something trained, at a rate that would undo it."""
    critic = recipe.rl.critic
    if critic.kind == "none" or critic.frozen or critic.trunk in ("light", "scratch", "shared"):
        return []
    # A copy of the reward model's trunk, or of the actor, is of the actor's size.
    copied = critic.trunk in ("reward-model", "actor")
    usual = size.rates["reward"] if copied else ENCODER_RATE
    watch = "critic/explained_variance and critic/auc for a fall"
    line = _line(
        "rl.critic.learning_rate", critic.learning_rate, usual, watch, "a pretrained trunk"
    )
    return [] if usual.holds(critic.learning_rate) else [line]


def _line(path: str, value: float, usual: Usual, watch: str, size: str) -> str:
    return f"{path} = {value:g} is outside the usual {usual} for {size}; watch {watch}."


def _relations(recipe: Recipe, rates: dict[Stage, float], size: SizeClass) -> list[str]:
    """Values that are unusual only beside another one."""
    lines = []
    # Adapters forget less (Biderman et al. 2024, arXiv:2405.09673), and the base stays as it was.
    forgets = size.parameters > SIZES[0].parameters and recipe.model.lora is None
    if forgets and rates["rl"] > _MOST_RL_OF_SFT * rates["sft"] * (1 + 1e-9):
        lines.append(
            f"rl.actor.learning_rate = {rates['rl']:g} is more than a tenth of sft.learning_rate = "
            f"{rates['sft']:g}; watch a clean evaluation for forgetting."
        )
    critic = recipe.rl.critic
    if critic.off_policy == "vtrace" and critic.c_bar > critic.rho_bar:
        lines.append(
            f"rl.critic.c_bar = {critic.c_bar:g} is above rl.critic.rho_bar = {critic.rho_bar:g}, "
            "where V-trace need not converge; watch critic/loss for growth."
        )
    steps = critic.steps * critic.warm_up.max_iterations
    offline = recipe.rl.offline
    if offline.active and offline.method == "iql" and steps < IQL_STEPS:
        lines.append(
            f"rl.critic.warm_up.max_iterations = {critic.warm_up.max_iterations} gives the critic "
            f"{steps} steps before the actor learns from it, and IQL passes a reward back one turn "
            f"at a time, so that {IQL_STEPS} are usual; watch advantage/std."
        )
    if recipe.rl.ppo.entropy_coef_final > recipe.rl.ppo.entropy_coef:
        lines.append(
            f"rl.ppo.entropy_coef_final = {recipe.rl.ppo.entropy_coef_final:g} is above "
            f"rl.ppo.entropy_coef = {recipe.rl.ppo.entropy_coef:g}; usually the bonus falls, "
            "watch actor/entropy for a rise at the end."
        )
    return lines
