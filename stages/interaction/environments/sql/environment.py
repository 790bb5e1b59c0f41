"""The ``sql`` environment: a question (or several unrelated ones) over one database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from stages.interaction.environments.base import Reset, Task
from stages.interaction.environments.sql import own
from stages.interaction.environments.sql.analyst import Analyst, Policy, question_rows
from stages.interaction.environments.sql.options import SqlOptions
from stages.interaction.environments.sql.relabel import own_relabelled, relabelled
from stages.interaction.environments.sql.tasks import generate, independent, open_world
from stages.interaction.trajectory import Trajectory


class SqlEnvironment(Analyst):
    """Answer questions over a database nobody has described yet, generated or a person's own."""

    name = "sql"
    options: SqlOptions

    def __init__(self, options: SqlOptions | None = None):
        super().__init__(options or SqlOptions())
        self._own = own.load(self.options)

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split (fewer if your own file holds fewer)."""
        if self._own is not None:
            return own.select(self._own, split, count, seed)
        return generate(self.options, independent(self.options), split, count, seed)

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Splits that a person's questions lack, and the split whose tasks each gives instead."""
        return self._own.stand_ins if self._own is not None else {}

    def demonstrate(self, task: Task, seed: int) -> Policy:
        """The scripted expert, or over a person's own file a walk through the gold statements."""
        return own.Walkthrough(task) if self._own is not None else super().demonstrate(task, seed)

    def relabel(self, task: Task, trajectory: Trajectory) -> Task | None:
        """The questions that the statements of an episode do answer; of a person's own, another."""
        if self._own is not None:
            tasks, database = self._own.by_split["train"], own.open_database(self.options)
            with closing(database):
                return own_relabelled(tasks, task, trajectory, database)
        world = self._world(task)
        with closing(open_world(world, time_limit_s=self.options.time_limit_s)) as database:
            return relabelled(
                task,
                trajectory,
                world=world,
                database=database,
                templates=self.options.templates,
            )

    def reset(self, task: Task) -> Reset:
        """Start an episode of a task."""
        if self._own is not None:
            return self._begin(own.open_database(self.options), question_rows(task))
        return super().reset(task)
