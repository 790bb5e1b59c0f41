"""What the recipe says of the critic, in the critic's own terms."""

from __future__ import annotations

from stages.recipe.critic import ViewSection
from stages.recipe.models import RlSection
from stages.rl.critic.learner import FitPlan
from stages.rl.critic.views import ViewParts


def fit_plan(rl: RlSection) -> FitPlan:
    """How it is fitted."""
    critic = rl.critic
    return FitPlan(
        optimizer=critic.optimizer,
        learning_rate=critic.learning_rate,
        steps=critic.steps,
        batch_size=critic.batch_size,
        target_update=critic.target_update,
        target_rate=critic.target_rate,
        target_period=critic.target_period,
        discount=rl.ppo.discount,
        gae_lambda=critic.gae_lambda,
        n_steps=critic.n_steps,
        rho_bar=critic.rho_bar,
        c_bar=critic.c_bar,
        max_grad_norm=critic.max_grad_norm,
    )


def view_parts(view: ViewSection, state_tokens: int) -> ViewParts:
    """What it sees; ``state_tokens`` is the budget of the actor's state."""
    return ViewParts(**view.model_dump(exclude={"max_tokens"}), state_tokens=state_tokens)
