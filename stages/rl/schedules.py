"""What moves over an RL run: the temperature, the KL coefficient, the weights of the objective."""

from __future__ import annotations

from stages.recipe.models import RlSection
from stages.rl.kl import KlCoefficient
from stages.rl.learner import Objective
from stages.rl.losses import linear


def temperature_at(rl: RlSection, version: int) -> float:
    """Sampling temperature of the actor after so many updates.

    It moves over the first half of the run, with the updates and not with the iterations, so
    that all episodes of one update were sampled alike.
    """
    start, end = rl.actor.temperature, rl.actor.temperature_final
    return linear(start, end or start, 2 * version / max(rl.iterations - 1, 1))


def kl_coefficient(rl: RlSection) -> KlCoefficient:
    """The weight of the KL term, fixed or steered, at the start of a run."""
    return KlCoefficient(rl.ppo.kl_coef, rl.ppo.kl_target, rl.ppo.kl_gain)


def objective_at(rl: RlSection, iteration: int, version: int) -> Objective:
    """The coefficients of one iteration as planned; entropy moves linearly over the run."""
    temperature = temperature_at(rl, version)
    done = iteration / max(rl.iterations - 1, 1)
    return Objective(
        clip_range=rl.ppo.clip_range,
        kl_coef=rl.ppo.kl_coef,
        kl_loss=rl.ppo.kl_loss,
        entropy_coef=linear(rl.ppo.entropy_coef, rl.ppo.entropy_coef_final, done),
        sft_coef=rl.ppo.sft_coef,
        sft_temperature=1.0 if rl.ppo.sft_data == "sft" else temperature,
        temperature=temperature,
        max_grad_norm=rl.actor.max_grad_norm,
        vf_coef=rl.critic.value_weight,
    )
