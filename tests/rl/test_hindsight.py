"""Hindsight through the real run: what is relabelled, who learns from it, who never meets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.common.errors import UsageError
from stages.common.ranks import ALONE, Ranks
from stages.interaction.arena import TRAIN_TASKS
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import ExpertOptions, SqlEnvironment
from stages.interaction.generation import Request
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe
from stages.rl import hindsight, learner, trainer
from stages.rl.hindsight import Hindsight, Repeat
from stages.rl.player import Player
from stages.rl.pool import ExperiencePool, read_trajectories
from stages.rl.rows import actor_rows, refuse_relabelled
from tests.rl.test_run import Lab, weights
from tests.rl.worlds import START, episode, score, small_tokenizer

WORLD = {
    "name": "sql",
    "max_turns": 8,
    "templates": ["group", "count_compare", "aggregate"],
    "expert": ExpertOptions.clean().model_dump(),
}
TAUGHT = {"demonstrations": 40, "steps": 20, "batch_size": 8, "learning_rate": 1e-3}
BASE: dict[str, Any] = {
    "episodes": 12,
    "iterations": 1,
    "actor": {"max_new_tokens": 48, "temperature": 0.3},
}
IMITATED = {"sft_coef": 1.0, "sft_data": "hindsight"}
SEEN: dict[str, Any] = {"hindsight": {}, "ppo": IMITATED}


class TaughtLab(Lab):
    """Parents in these tests' world."""

    def recipe(self, **over: Any) -> Recipe:
        return super().recipe(**({"environment": WORLD, "sft": TAUGHT} | over))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The shipped base after a few right demonstrations: many of its queries make sense."""
    return TaughtLab(tmp_path_factory.mktemp("base"), lambda _: Path("recipes/base"))


@pytest.fixture(scope="module", autouse=True)
def misled() -> Iterator[None]:
    """Two of three training tasks hold another answer for right: good work fails in them."""
    real = SqlEnvironment.tasks

    def tasks(self: SqlEnvironment, split: str, count: int, seed: int) -> list[Task]:
        made = real(self, split, count, seed)
        return [
            _misled(task) if k % 3 and split == "train" else task for k, task in enumerate(made)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlEnvironment, "tasks", tasks)
        yield


def _misled(task: Task) -> Task:
    return replace(SqlEnvironment().alter_gold(task), id=f"{task.id}-misled")


def run(lab: Lab, out: Path, **options: Any) -> list[Any]:
    return lab.rl(out, environment=WORLD, **(BASE | options))


@pytest.fixture(scope="module")
def seen(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, Any]]:
    """One run with hindsight: its folder, its rows, and the row ids of each real loss call."""
    out = tmp_path_factory.mktemp("seen") / "rl"
    with pytest.MonkeyPatch.context() as patch:
        ids = watched(patch)
        yield out, run(lab, out, **SEEN), ids


def watched(patch: pytest.MonkeyPatch) -> dict[str, set[Any]]:
    """Keys of the rows that reach the clipped loss, and of all that are collated for a forward."""
    ids: dict[str, set[Any]] = {"ppo": set(), "all": set()}
    batches: dict[int, Any] = {}
    collate, ppo_loss = learner.collate, learner.ppo_loss

    def noting(piece: Any, *rest: Any) -> Any:
        batch = collate(piece, *rest)
        batches[id(batch)] = (batch, [row.key for row in piece])
        ids["all"] |= set(batches[id(batch)][1])
        return batch

    def loss(log_policy: Any, batch: Any, *rest: Any) -> Any:
        ids["ppo"] |= set(batches[id(batch)][1])
        return ppo_loss(log_policy, batch, *rest)

    patch.setattr(learner, "collate", noting)
    patch.setattr(learner, "ppo_loss", loss)
    return ids


def relabelled_of(folder: Path) -> list[Trajectory]:
    return read_trajectories(folder / "hindsight/00000.jsonl")


def test_share_and_source_are_logged(seen: Any) -> None:
    folder, (row,), _ = seen
    played = read_trajectories(folder / "trajectories/00000.jsonl")
    failed = {e.key: e for e in played if not e.success}
    made = relabelled_of(folder)
    assert len(made) == row["hindsight/episodes"] == row["hindsight/pool"] > 0
    assert row["hindsight/share"] == pytest.approx(len(made) / len(failed))
    assert row["hindsight/success"] == 1.0
    for start in ("hindsight/from_", "hindsight/to_"):
        assert sum(v for k, v in row.items() if k.startswith(start)) == pytest.approx(1.0)
    for e in made:
        source = failed[e.key[:-1]]
        assert e.relabelled_from == source.task_id != e.task_id
    assert 0 < row["hindsight/imitated"] <= 1 and row["actor/sft_loss"] > 0
    assert all(not e.relabelled_from for e in played)


def test_prompt_rewards_and_log_probs_are_those_of_the_new_task(seen: Any, lab: Lab) -> None:
    folder, (row,), _ = seen
    actor = AutoModelForCausalLM.from_pretrained(lab.sft)
    played = {e.key: e for e in read_trajectories(folder / "trajectories/00000.jsonl")}
    for e in relabelled_of(folder):
        source = played[e.key[:-1]]
        assert [t.action_ids for t in e.turns] == [t.action_ids for t in source.turns]
        assert [t.action.text for t in e.turns] == [t.action.text for t in source.turns]
        assert e.success and not source.success
        assert e.turns[-1].rewards["success"] == 1.0
        assert e.initial_privileged != source.initial_privileged
        for now, before in zip(e.turns, source.turns, strict=True):
            assert (now.prompt_ids != before.prompt_ids) == (e.goal != source.goal)
            again = score(actor.float(), list(now.prompt_ids), list(now.action_ids))
            # The run samples and scores at temperature 0.3, and a plain forward at 1.
            assert len(again) == len(now.logprobs) == len(now.action_ids)
    assert any(e.goal != played[e.key[:-1]].goal for e in relabelled_of(folder))
    assert row["hindsight/logprob"] != row["hindsight/logprob_before"]


def test_log_probs_equal_a_plain_forward(lab: Lab, tmp_path: Path) -> None:
    run(lab, tmp_path / "rl", **SEEN, actor={"max_new_tokens": 48, "temperature": 1.0})
    actor = AutoModelForCausalLM.from_pretrained(lab.sft)
    turns = [t for e in relabelled_of(tmp_path / "rl") for t in e.turns]
    assert turns
    for turn in turns:
        again = score(actor, list(turn.prompt_ids), list(turn.action_ids))
        assert again == pytest.approx(list(turn.logprobs), abs=1e-3)


def test_no_relabelled_row_reaches_the_clipped_ratio(seen: Any) -> None:
    folder, _, ids = seen
    relabelled = {e.key for e in relabelled_of(folder)}
    played = {e.key for e in read_trajectories(folder / "trajectories/00000.jsonl")}
    assert relabelled and relabelled & ids["all"], "they take part in the update"
    assert ids["ppo"] == played and not ids["ppo"] & relabelled


def test_a_planted_one_is_refused_in_the_real_loss_call(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trainer.actor_rows

    def planting(episodes: Any, advantages: Any, returns: Any) -> Any:
        rows = real(episodes, advantages, returns)
        return [*rows[:-1], replace(rows[-1], relabelled=True)]

    monkeypatch.setattr(trainer, "actor_rows", planting)
    ids = watched(monkeypatch)
    with pytest.raises(ValueError, match="reached the clipped ratio"):
        run(lab, tmp_path / "rl", **SEEN)
    assert len(ids["all"]) > len(ids["ppo"])


def test_rows_know_where_they_come_from() -> None:
    plain = episode([([START], [4, 5], 1.0)], key=(1, 0, 3))
    (row,) = actor_rows([plain], [[0.5]])
    assert row.key == (1, 0, 3) and not row.relabelled
    refuse_relabelled([row])
    (other,) = actor_rows([replace(plain, relabelled_from="t", key=(1, 0, 3, 6))], [[0.0]])
    with pytest.raises(ValueError, match=r"\(1, 0, 3, 6\)"):
        refuse_relabelled([row, other])


def test_imitating_them_moves_the_actor(lab: Lab, seen: Any, tmp_path: Path) -> None:
    """Beside self-imitation; and a share of the failures is a part of them."""
    run(lab, tmp_path / "own", ppo={"sft_coef": 1.0, "sft_data": "successes"})
    assert not torch.equal(weights(tmp_path / "own"), weights(seen[0]))
    assert not (tmp_path / "own/hindsight").exists()
    some = run(lab, tmp_path / "some", **SEEN | {"hindsight": {"share": 0.4}})
    assert {e.key for e in relabelled_of(tmp_path / "some")} < {
        e.key for e in relabelled_of(seen[0])
    }
    assert some[0]["hindsight/share"] < seen[1][0]["hindsight/share"]


def test_q_learns_from_them_and_v_does_not(lab: Lab, tmp_path: Path) -> None:
    """Same seed, same episodes: V's fit is the same to the last bit, Q's is not; and whoever
    imitates the pool's own successes does not imitate those that Q is shown."""
    critic = {"kind": "q", "warm_up": {"max_iterations": 0}}
    own = {"sft_coef": 1.0, "sft_data": "successes"}
    plain = run(lab, tmp_path / "plain", critic=critic, ppo=own)
    taught = run(lab, tmp_path / "taught", critic=critic, ppo=own, hindsight={"critic": 1.0})
    assert taught[0]["hindsight/episodes"] > 0
    assert taught[0]["critic/loss"] == plain[0]["critic/loss"]
    assert taught[0]["critic/q_loss"] != plain[0]["critic/q_loss"]
    assert "hindsight/imitated" not in taught[0]
    for name, same in (("model.safetensors", True), ("q/model.safetensors", False)):
        files = [tmp_path / folder / "critic" / name for folder in ("plain", "taught")]
        assert (files[0].read_bytes() == files[1].read_bytes()) == same


@pytest.mark.full
def test_an_interrupted_run_resumes_to_the_same_weights(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SEEN | {"iterations": 2, "episodes": 6, "checkpoint_every": 1}
    run(lab, tmp_path / "whole", **options)
    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 1:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(Player, "collect", killed)
    with pytest.raises(KeyboardInterrupt):
        run(lab, tmp_path / "cut", **options)
    monkeypatch.undo()
    rows = run(lab, tmp_path / "cut", **options)
    assert rows[-1]["hindsight/pool"] > rows[-1]["hindsight/episodes"]
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_an_environment_that_cannot_relabel_is_told_before_anything_is_played(
    lab: Lab, tmp_path: Path
) -> None:
    session = {"name": "sql-session"}
    with pytest.raises(UsageError, match=r"sql-session has no relabel\(task, trajectory\)"):
        lab.rl(tmp_path / "rl", environment=session, **(BASE | SEEN))
    assert not (tmp_path / "rl").exists()


def test_what_no_longer_fits_is_not_said_again() -> None:
    said = episode([([START], [4, 5], 0.0)], key=(0, 0, 0))
    messages = [{"role": "user", "content": "1 2 3"}]
    tokenizer = small_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    requests = [Request(messages, (), (0, 0, 0, turn)) for turn in (0, 1)]
    wide, ended = Repeat(tokenizer, [said], context=64).generate(requests)
    assert (list(wide.ids), list(wide.logprobs), wide.overflow) == ([4, 5], [0.0, 0.0], False)
    assert ended.overflow
    (narrow, _) = Repeat(tokenizer, [said], context=len(wide.prompt_ids) + 1).generate(requests)
    assert narrow.overflow


class Together(Ranks):
    """One of several processes: is told what the others, asked before it, had made."""

    made: ClassVar[list[Any]] = []

    def everyone(self, mine: Any) -> list[Any]:
        self.made.append(mine)
        return list(self.made)


class Namer:
    """Stands in for what plays again: every episode has another task."""

    def check(self) -> None:
        """It can."""

    def relabelled(self, tasks: Any, episodes: Any) -> list[Trajectory]:
        pairs = zip(tasks, episodes, strict=True)
        return [
            replace(e, key=(*e.key, hindsight.HINDSIGHT), relabelled_from=task.id)
            for task, e in pairs
        ]


def test_several_processes_make_together_what_one_makes(tmp_path: Path) -> None:
    tasks = [Task(f"task {n}", "k", "g") for n in range(7)]
    lost = [episode([([START], [4], 0.0)], key=(0, 0, n)) for n in range(7)]
    pools = []
    for ranks in (ALONE, Together(0, 2), Together(1, 2)):
        pool = ExperiencePool(tmp_path / str(len(pools)), max_episodes=99)
        pools.append(pool)
        namer: Any = Namer()
        seen = Hindsight(namer, pool, list, share=0.6, seed=3, ranks=ranks)
        seen(0, tasks, [*lost, replace(lost[0], success=True)])
    alone, _, last = (pool.episodes for pool in pools)
    assert alone == last and 0 < len(alone) < 7
    assert [e.relabelled_from for e in alone] == [f"task {e.key[2]}" for e in alone]
    assert not set(map(id, Together.made[0])) & set(map(id, Together.made[1]))


def test_the_place_in_random_keys_is_its_own() -> None:
    from stages.rl.critic import q

    places = [1, 2, TRAIN_TASKS, q.Q_SAMPLES, hindsight.HINDSIGHT, q.RELABELLED_SAMPLES]
    assert len(set(places)) == len(places)
