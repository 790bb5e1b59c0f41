"""Held-out evaluation (``aac eval``): the same tasks for every actor and scripted policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.common.console import show, warn
from stages.common.errors import UsageError
from stages.common.seeding import set_threads
from stages.evaluation.held_out import HeldOut
from stages.evaluation.policies import most_frequent_policy, null_policy, random_policy
from stages.evaluation.readiness import TRIES, readiness
from stages.evaluation.supervise import Supervise, supervision_figures, unsupervised
from stages.evaluation.tables import groups_table, metrics_table
from stages.interaction.arena import Arena
from stages.interaction.player import LoadedActor, load_player
from stages.interaction.rollout import Reviewer
from stages.interaction.states import StateOptions
from stages.recipe.models import ActorSection, Recipe

FEW_WORDS = 10e6
"""Actors with fewer weights read and write only the names they were pretrained on."""


Reviewers = Callable[[Path, Recipe], Reviewer | None]
"""(actor's folder, recipe) -> the reviewer that belongs to the actor, None if it has none.

Whoever composes the stages passes it in, as this room does not know the critic."""


def no_reviewers(folder: Path, recipe: Recipe) -> None:
    """Where nobody can load critics, an actor that expects reviews cannot be played."""
    raise UsageError(
        f"{folder} is shown reviews by state.review = words, which only a command that loads its "
        "critic can give it; play it by aac eval, chat, collect or run."
    )


def arena_of(recipe: Recipe) -> Arena:
    """The recipe's world as evaluation plays it; reward-model scores take no part."""
    return Arena.of(
        recipe.environment,
        recipe.state,
        recipe.rl.rewards,
        writer=recipe.model.actor,
        parallel=recipe.evaluation.batch,
    )


def held_out(recipe: Recipe, *, episodes: int | None = None, split: str | None = None) -> HeldOut:
    """The tasks that ``recipe.evaluation`` asks for; ``episodes`` and ``split`` go before it."""
    options = recipe.evaluation
    return HeldOut.of(
        arena_of(recipe),
        split=split or options.split,
        episodes=episodes or options.episodes,
        seed=options.seed,
    )


def player(
    recipe: Recipe,
    folder: str | Path,
    reviewers: Reviewers = no_reviewers,
    *,
    sampling: ActorSection | None = None,
) -> LoadedActor:
    """Load an actor to be played under this recipe, and its critic if its state shows reviews.

    ``sampling``: how it samples, by default as in evaluations.
    """
    loaded = load_player(
        folder,
        model=recipe.model,
        sampling=sampling or recipe.evaluation_sampling,
        state=recipe.state,
    )
    if StateOptions.of(loaded.state).review == "words":
        loaded = replace(loaded, reviewer=reviewers(Path(folder), recipe))
    if getattr(recipe.environment, "database", None) and loaded.parameters < FEW_WORDS:
        warn(
            f"{folder} has {loaded.parameters / 1e6:.1f} million weights and knows few words beyond"
            " those it was pretrained on, so it will stumble over the names in a database of your"
            " own; use a real pretrained model as model.actor, at least some hundred million"
            " weights."
        )
    return loaded


def measure_actor(tasks: HeldOut, actor: LoadedActor, *, greedy: bool) -> dict[str, Any]:
    """The figures of a loaded actor on these tasks, in the state it was trained with."""
    return tasks.served(actor).measure(actor.policy, greedy=greedy, count_tokens=actor.count_tokens)


def evaluate(
    recipe: Recipe,
    actor_folder: str | Path,
    *,
    reviewers: Reviewers = no_reviewers,
    greedy: bool = False,
    episodes: int | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """Load an actor and measure it; equal seeds give equal figures."""
    set_threads(recipe.threads)
    tasks = held_out(recipe, episodes=episodes, split=split)
    return measure_actor(tasks, player(recipe, actor_folder, reviewers), greedy=greedy)


def _most_frequent(tasks: HeldOut) -> dict[str, Any]:
    demonstrations = tasks.arena.demonstrate(tasks.training, seed=tasks.seed)
    return tasks.measure(most_frequent_policy(demonstrations))


POLICIES: dict[str, Callable[[HeldOut], dict[str, Any]]] = {
    "null": lambda tasks: tasks.measure(null_policy()),
    "random": lambda tasks: tasks.measure(random_policy()),
    "most_frequent": _most_frequent,
    "expert": HeldOut.measure_expert,
}
"""Scripted policies by name: held-out tasks in, figures out."""


def measure_policy(tasks: HeldOut, name: str) -> dict[str, Any]:
    """The figures of a scripted policy. UsageError for an unknown name."""
    known = {**POLICIES, "frequent": _most_frequent}
    if name not in known:
        raise UsageError(f"--policy {name} is unknown; expected one of {', '.join(POLICIES)}.")
    return known[name](tasks)


def readiness_check(recipe: Recipe, actor: LoadedActor) -> dict[str, Any]:
    """Sample every task of a training sample several times (B9); see ``readiness``.

    ``actor`` samples as in training rollouts.
    """
    arena = arena_of(recipe).served(actor.state, actor.reviewer)
    seed = recipe.evaluation.seed
    tasks = arena.tasks("train", recipe.evaluation.readiness_tasks, seed)
    repeated = [task for task in tasks for _ in range(TRIES)]
    played = arena.play(repeated, actor.policy, key=(seed, 1), count_tokens=actor.count_tokens)
    return readiness(played, [sum(arena.mix.totals(t)) for t in played])


def evaluate_command(
    recipe: Recipe,
    actor: str | None,
    *,
    reviewers: Reviewers = no_reviewers,
    policy: str | None = None,
    greedy: bool = False,
    supervise: Supervise = unsupervised,
) -> dict[str, Any]:
    """``aac eval``: measure an actor's folder, or a scripted policy in its stead.

    Shows tables and returns the object that ``--json`` prints: who and what was measured, then
    the figures of ``episode_metrics``, and those of its supervision, if any.
    """
    if (actor is None) == (policy is None):
        raise UsageError("give either --actor or --policy, and not both.")
    set_threads(recipe.threads)
    tasks = held_out(recipe)
    if policy is not None:
        figures = measure_policy(tasks, policy)
    else:
        loaded = supervise(player(recipe, str(actor), reviewers))
        figures = measure_actor(tasks, loaded, greedy=greedy) | supervision_figures(loaded)
    result = {
        **({"actor": actor} if policy is None else {"policy": policy}),
        "split": recipe.evaluation.split,
        "seed": tasks.seed,
        "greedy": greedy,
        **figures,
    }
    show(metrics_table(result))
    show(groups_table({"success": figures}))
    return result
