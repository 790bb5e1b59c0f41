"""Hindsight experience replay: failed episodes become successes of the task they did solve.

Andrychowicz et al. 2017, arXiv:1707.01495. The environment names another task (``relabel``), the
same actions are played again in it, so that prompts, observations, checklist, privileged facts and
rewards are that task's own, and the current actor's log-probs are taken on the new prompts.

What may learn from them, and what may not:

- The task was chosen because of how the episode ended. Its return is that of "this task, given that
  these actions solve it", so V is never fitted to it (unweighted it would exceed the truth), and
  π/μ is no likelihood ratio of it, so it never reaches the clipped objective. Both refuse it.
- Imitation of successes needs no ratio and no value: an action that solves a task is right in it.
- Q(c, a) conditions on the action: r + γ·V̄(c') is an honest target whatever chose the task, as long
  as (c, a) decides what follows, which privileged facts of c see to. Longer returns are not.

They live in a pool of their own, so that nothing that draws from the experience pool meets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.common.errors import UsageError
from stages.common.ranks import ALONE, Ranks
from stages.common.seeding import keyed_generator
from stages.interaction.arena import Arena
from stages.interaction.environments.base import Relabeller, Task
from stages.interaction.generation import Generation, Request
from stages.interaction.replies import prompt_ids
from stages.interaction.states.base import CountTokens
from stages.interaction.trajectory import Trajectory
from stages.rl.pool import ExperiencePool

HINDSIGHT = 6
"""Place in random keys, so that no two uses share numbers."""
Rescore = Callable[[Sequence[Trajectory]], list[Trajectory]]
"""Fills in what the run adds to an episode: scores, and the current actor's log-probs."""


class Repeat:
    """A policy that says again, token for token, what finished episodes said."""

    def __init__(self, tokenizer: Any, episodes: Sequence[Trajectory], *, context: int) -> None:
        """Episode k of the rollout repeats ``episodes[k]``; ``context``: the actor's, in tokens."""
        self._tokenizer, self._episodes, self._context = tokenizer, episodes, context

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """The recorded tokens on the prompt of now, their log-probs still to be taken (0).

        Where the record ends before the episode does, or no longer fits, there is no reply.
        """
        return [self._again(request) for request in requests]

    def _again(self, request: Request) -> Generation:
        number, turn = request.key[-2:]
        said, ids = self._episodes[number].turns, prompt_ids(self._tokenizer, request)
        if turn >= len(said) or len(ids) + len(said[turn].action_ids) > self._context:
            return Generation(ids, overflow=True)
        action = said[turn].action_ids
        return Generation(ids, action, [0.0] * len(action), said[turn].action.text)


@dataclass(frozen=True)
class Replayer:
    """Plays episodes again in other tasks."""

    arena: Arena
    tokenizer: Any
    count_tokens: CountTokens
    context: int
    """Tokens that the actor takes in."""

    def check(self) -> None:
        """UsageError unless the environment can name another task."""
        environment = self.arena.make_environment()
        try:
            able = isinstance(environment, Relabeller)
        finally:
            environment.close()
        if not able:
            raise UsageError(
                f"rl.hindsight is given, but environment {self.arena.environment.name} has no "
                "relabel(task, trajectory); leave rl.hindsight out, or give the environment one."
            )

    def relabelled(self, tasks: Sequence[Task], episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes for which there is another task, as they go in it; ``tasks`` are theirs."""
        environment: Any = self.arena.make_environment()
        try:
            named = [environment.relabel(t, e) for t, e in zip(tasks, episodes, strict=True)]
        finally:
            environment.close()
        pairs = [(task, e) for task, e in zip(named, episodes, strict=True) if task is not None]
        sources = [episode for _, episode in pairs]
        played = self.arena.play(
            [task for task, _ in pairs],
            Repeat(self.tokenizer, sources, context=self.context),
            key=(0, HINDSIGHT),
            count_tokens=self.count_tokens,
            label="",
        )
        return [
            replace(
                again,
                key=(*source.key, HINDSIGHT),
                actor_version=source.actor_version,
                relabelled_from=source.task_id,
            )
            for again, source in zip(played, sources, strict=True)
            if again.error is None and again.turns
        ]


class Hindsight:
    """Relabels an iteration's failures and keeps them apart."""

    def __init__(
        self,
        replayer: Replayer,
        pool: ExperiencePool,
        rescore: Rescore,
        *,
        share: float,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """``share`` of the failures is looked at, drawn by ``seed``."""
        replayer.check()
        self.pool, self._replayer, self._rescore = pool, replayer, rescore
        self._share, self._seed, self._ranks = share, seed, ranks

    def __call__(
        self, iteration: int, tasks: Sequence[Task], episodes: Sequence[Trajectory]
    ) -> dict[str, float]:
        """``tasks[n]`` is what the episode with number n in its key was played for. Metrics."""
        rng = keyed_generator(self._seed, iteration, HINDSIGHT)
        failed = [e for e in episodes if not e.success]
        chosen = [e for e in failed if rng.random() < self._share]
        mine = [chosen[k] for k in self._ranks.share(len(chosen))]
        again = self._replayer.relabelled([tasks[e.key[-1]] for e in mine], mine)
        # Told by rank and put in order: all processes go on with the same episodes.
        everybodys = [e for part in self._ranks.everyone(again) for e in part]
        relabelled = self._rescore(sorted(everybodys, key=lambda e: e.key))
        self.pool.add(iteration, relabelled)
        return self._figures(relabelled, {e.key: e for e in failed})

    def _figures(
        self, relabelled: Sequence[Trajectory], failed: dict[tuple[int, ...], Trajectory]
    ) -> dict[str, float]:
        """Share of the failures, and which kinds of task became which."""
        count = len(relabelled)
        figures = {
            "hindsight/share": count / max(len(failed), 1),
            "hindsight/episodes": float(count),
            "hindsight/pool": float(len(self.pool)),
        }
        if not count:
            return figures
        sources = Counter(failed[e.key[:-1]].kind for e in relabelled)
        figures |= {f"hindsight/from_{kind}": n / count for kind, n in sorted(sources.items())}
        goals = Counter(e.kind for e in relabelled)
        figures |= {f"hindsight/to_{kind}": n / count for kind, n in sorted(goals.items())}
        before = [failed[e.key[:-1]] for e in relabelled]
        return figures | {
            "hindsight/success": sum(e.success for e in relabelled) / count,
            "hindsight/logprob": mean_logprob(relabelled),
            "hindsight/logprob_before": mean_logprob(before),
        }


def mean_logprob(episodes: Sequence[Trajectory]) -> float:
    """Mean log-prob of the action tokens, as recorded."""
    logprobs = [x for e in episodes for turn in e.turns for x in turn.logprobs]
    return sum(logprobs) / max(len(logprobs), 1)
