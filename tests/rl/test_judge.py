"""The critic as judge: what it scores by definition, and whom it refuses to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.errors import UsageError
from stages.interaction.arena import Arena
from stages.interaction.environments.sql import SqlOptions
from stages.interaction.trajectory import Trajectory
from stages.recipe.critic import CriticSection
from stages.rl.critic.judge import judge_of, saved_judge
from stages.rl.critic.trunks import ACTIONS, build_network, save_critic
from stages.rl.critic.views import ViewParts, action_views, critic_views

BLIND = ViewParts(privileged=False, state_tokens=512)


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    arena = Arena(SqlOptions(), {"tool_prompt": "none"})
    played = arena.demonstrate(arena.tasks("train", 3, 0), seed=0)
    return [replace(e.with_turns(e.turns[:n]), key=()) for n, e in enumerate(played, 1)]


def networks() -> tuple[Any, Any]:
    section = CriticSection(kind="q", hidden_size=8, loss="mse")
    return moved(build_network(section, actions=True), 1), moved(build_network(section), 2)


def moved(network: Any, seed: int) -> Any:
    """Off its start, where every value is 0."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weights in network.parameters():
            weights += 0.3 * torch.randn_like(weights)
    return network


def test_the_score_is_q_less_v_of_the_newest_turn(episodes) -> None:
    """Against one episode at a time, the whole of whose values are asked for."""
    q, v = networks()
    judged = judge_of(q, v, BLIND)([episodes[:2], episodes[2:]])
    flat = [score for group in judged for score in group]
    assert [len(group) for group in judged] == [2, 1]
    for episode, score in zip(episodes, flat, strict=True):
        with torch.no_grad():
            all_q = q([q.prepare(action_views(episode, BLIND))])
            all_v = v([v.prepare(critic_views(episode, BLIND))])
        assert score == pytest.approx(float(all_q[-1] - all_v[-2]), abs=1e-6)


def test_the_score_depends_on_the_action_and_on_no_fact(episodes) -> None:
    judge = judge_of(*networks(), BLIND)
    [episode] = episodes[2:]
    last = episode.turns[-1]
    other = replace(last, action=replace(last.action, text="something else"))
    facts = [replace(t, privileged={"gold_answer": "secret"}) for t in episode.turns]
    told = replace(episode.with_turns(facts), initial_privileged={"gold_answer": "secret"})
    [[mine, changed, known]] = judge([[episode, episode.with_turns([*episode.turns[:-1], other]),
                                       told]])  # fmt: skip
    assert abs(mine - changed) > 1e-4
    assert mine == pytest.approx(known, abs=1e-6)


def saved(folder: Path, **options: Any) -> Path:
    """A critic's folder as a run leaves it, with fresh networks."""
    section = CriticSection(**{"hidden_size": 8, "loss": "mse"} | options)
    dump = section.model_dump(mode="json")
    save_critic(moved(build_network(section), 1), folder, dump)
    for name in ("q", "discriminator"):
        acting = moved(build_network(section, actions=True), 2)
        save_critic(acting, folder / name, dump | {ACTIONS: True})
    return folder


@pytest.mark.parametrize("kind", ["q", "discriminative"])
def test_saved_critics_judge(kind: str, tmp_path: Path, episodes) -> None:
    judge = saved_judge(saved(tmp_path, kind=kind, view={"privileged": False}), 512)
    [scores] = judge([episodes])
    assert len(set(scores)) == len(episodes)


def test_a_blind_discriminator_beside_a_critic_that_knows_may_judge(tmp_path: Path, episodes):
    options = {"kind": "discriminative", "discriminator": {"privileged": False}}
    assert saved_judge(saved(tmp_path, **options), 512)([episodes])


@pytest.mark.parametrize(
    ("options", "said"),
    [({"kind": "v", "view": {"privileged": False}}, "kind v, which judges states"),
     ({"kind": "q"}, "trained with privileged facts"),
     ({"kind": "discriminative"}, "trained with privileged facts")],
)  # fmt: skip
def test_critics_that_cannot_judge_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        saved_judge(saved(tmp_path, **options), 512)
