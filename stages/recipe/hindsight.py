"""Hindsight's part of a recipe."""

from __future__ import annotations

from pydantic import Field

from stages.recipe.section import Section


class HindsightSection(Section):
    """Failed episodes relabelled with the task they did solve (arXiv:1707.01495), where the
    environment can name one. Their successes join what rl.ppo.sft_data: hindsight imitates, and
    Q may learn from them; V and the clipped ratio never meet them."""

    share: float = Field(1.0, gt=0, le=1)
    """Share of each iteration's failures that is looked at."""
    critic: float = Field(0.0, ge=0)
    """With rl.critic.kind: q: weight of relabelled episodes in Q's loss beside the others (one
    reward, then V of the next view: expected SARSA); 0: Q does not see them."""


def check_hindsight(
    hindsight: HindsightSection | None, sft_data: str, *, sft_coef: float, critic_kind: str
) -> None:
    """ValueError where something is relabelled that nothing learns from, or the other way round."""
    if hindsight is None:
        if sft_data == "hindsight":
            raise ValueError(
                "rl.ppo.sft_data is hindsight, but nothing is relabelled; give rl.hindsight, or "
                "set sft_data to successes or sft"
            )
        return
    if hindsight.critic and critic_kind != "q":
        raise ValueError(
            f"rl.hindsight.critic = {hindsight.critic:g} is about Q, but rl.critic.kind is "
            f"{critic_kind}; set that to q, or leave rl.hindsight.critic out"
        )
    if not hindsight.critic and (sft_data != "hindsight" or not sft_coef):
        raise ValueError(
            "rl.hindsight is given, but nothing learns from it; set rl.ppo.sft_data: hindsight "
            "with an rl.ppo.sft_coef above 0, or rl.hindsight.critic above 0 with kind q"
        )
