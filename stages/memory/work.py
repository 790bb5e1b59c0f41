"""Tokens of one RL iteration, and how long they take at measured rates."""

from __future__ import annotations

from dataclasses import dataclass

from stages.memory.job import Job


@dataclass(frozen=True)
class Work:
    """Tokens per iteration over all processes. Upper bounds: every turn is played, every prompt is
    as long as its budget, and every turn is a training row of its own."""

    prompts: int
    """Read before sampling."""
    sampled: int
    scored: int
    """Forward only, by the reference and by the reward model."""
    learned: int
    """Forward and backward, all epochs."""

    def flops(self, parameters: int) -> float:
        """2 per weight and token forward, 6 with the backward (Kaplan et al. 2020,
        arXiv:2001.08361, section 2.1)."""
        forward = self.prompts + self.sampled + self.scored
        return parameters * (2.0 * forward + 6.0 * self.learned)


@dataclass(frozen=True)
class Rates:
    """Tokens per second of one process, measured."""

    forward: float
    sampling: float
    learning: float
    device: str

    def seconds(self, work: Work, processes: int) -> dict[str, float]:
        """Per phase of an iteration; processes share the work evenly and wait for nobody."""
        return {
            "rollout": (work.prompts / self.forward + work.sampled / self.sampling) / processes,
            "scoring": work.scored / self.forward / processes,
            "update": work.learned / self.learning / processes,
        }


def iteration_work(job: Job) -> Work:
    """The tokens of one iteration of a job."""
    play = job.play
    turns = play.episodes * play.turns
    judges = 1 + (job.reward is not None)
    return Work(
        prompts=turns * play.prompt,
        sampled=turns * play.action,
        scored=judges * turns * play.row,
        learned=play.epochs * turns * play.row,
    )
