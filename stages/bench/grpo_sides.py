"""Both sides of the multi-turn comparison: each call is a batch of episodes and one optimizer step
on them."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.bench.analyst import SqlTools
from stages.bench.dialect import teach_tools
from stages.bench.grpo_work import Work
from stages.bench.models import TRL_SETTINGS
from stages.bench.running import Running
from stages.common.errors import RunError
from stages.common.records import read_records
from stages.common.rows import merge_turns

Ids = list[int]


class Ours(Running):
    """The RL stage on that work."""

    def __init__(
        self, folder: Path, work: Work, overrides: Sequence[str] = (), name: str = "ours"
    ) -> None:
        """``name``: of the run's own folder within ``folder``."""
        del work  # it is in the recipe
        super().__init__(
            folder / name, folder / "recipe.yaml", sft=folder / "sft", overrides=overrides
        )
        self.place = folder

    def greedy(self, count: int) -> list[Ids]:
        """Token ids of whole episodes of the first tasks, by the likeliest tokens."""
        player = self.session.player
        policy = player.sampler.policy(0)
        environment = player.arena.make_environment()
        rows = {task.payload["row"]["id"]: task for task in environment.tasks("train", 10**6, 0)}
        tasks = [rows[row["id"]] for row in first_rows(self.place, count)]
        played = player.arena.play(
            tasks, policy, greedy=True, count_tokens=player.count_tokens, label=""
        )
        return [_whole([(t.prompt_ids, t.action_ids) for t in e.turns]) for e in played]


class Theirs:
    """TRL's trainer."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.work, self.folder = work, folder
        self.trainer = grpo_trainer(folder, work)
        self._playing, self._tokens, self._turns = 0.0, 0, 0
        generate = self.trainer._generate

        def generated(prompts: Any) -> Any:
            start = time.perf_counter()
            made = generate(prompts)
            self._playing += time.perf_counter() - start
            self._tokens += sum(map(sum, made[2]))
            self._turns += sum(m["role"] == "assistant" for c in made[3] for m in c)
            return made

        self.trainer._generate = generated

    def __call__(self) -> dict[str, Any]:
        """One batch of episodes."""
        self._playing, self._tokens, self._turns = 0.0, 0, 0
        with contextlib.redirect_stdout(io.StringIO()):
            self.trainer.train()
        return {
            "episodes": self.work.batch,
            "turns": self._turns,
            "response_tokens": self._tokens,
            "optimizer_steps": 1,
            "phases": {"time/rollout_s": self._playing},
        }

    def greedy(self, count: int) -> list[Ids]:
        """See ``Ours.greedy``."""
        settings = self.trainer.generation_config
        settings.do_sample = False
        try:
            made = self.trainer._generate_and_score_completions(first_rows(self.folder, count))
        finally:
            settings.do_sample = True
        parts = zip(
            made["prompt_ids"],
            made["prompt_mask"].bool(),
            made["completion_ids"],
            made["completion_mask"].bool(),
            strict=True,
        )
        return [prompt[a].tolist() + answer[b].tolist() for prompt, a, answer, b in parts]


def grpo_trainer(folder: Path, work: Work, **changes: Any) -> Any:
    """TRL's trainer on the actor and tasks of ``folder``; ``changes``: of its settings."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

    settings: dict[str, Any] = {
        **TRL_SETTINGS,
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": work.batch,
        "num_generations": work.group,
        "max_steps": 1,
        "seed": work.seed,
        "max_completion_length": work.tokens,
        "generation_kwargs": {"max_new_tokens": work.reply},
        "max_tool_calling_iterations": work.rounds,
        "learning_rate": work.rate,
        **changes,
    }
    tokenizer = teach_tools(AutoTokenizer.from_pretrained(folder / "sft"))
    model = AutoModelForCausalLM.from_pretrained(folder / "sft")
    model.get_input_embeddings().weight.requires_grad_(False)
    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(**settings),
        reward_funcs=[],
        train_dataset=Dataset.from_list(first_rows(folder, work.tasks)),
        processing_class=tokenizer,
        environment_factory=SqlTools,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def first_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """The first training tasks of the file that both sides play."""
    rows = (row for _, row in read_records(folder / "tasks.jsonl"))
    return [dict(row) for row in rows if row["split"] == "train"][:count]


def _whole(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Ids:
    """An episode whose prompts extend each other as one sequence. RunError where they do not."""
    rows = merge_turns(turns)
    if len(rows) != 1:
        raise RunError(f"an episode has {len(rows)} threads, expected one")
    return list(rows[0].ids)
