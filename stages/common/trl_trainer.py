"""What the SFT and reward stages share in driving TRL's trainers.

Fixed data order, checkpoints of the run folder, metrics to it, one progress line, and no word
to anybody else: telemetry, hub and model cards are off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from stages.common.adapters import has_adapters
from stages.common.allocator import give_back
from stages.common.best import BEST, BestWeights
from stages.common.checkpoints import WRITING, Origin, prune
from stages.common.engine import whole_tensors, without_empty_groups
from stages.common.errors import RunError, UsageError
from stages.common.interrupts import Interrupted, deferred
from stages.common.live import Board
from stages.common.models import save_folder
from stages.common.moments import check_tensors
from stages.common.ranks import Ranks, world_size
from stages.common.run_folder import MetricsWriter, RunFolder
from stages.common.save_points import SavePoints
from stages.common.sharding import check_partitioned, is_sharded, mode

NOTED = "noted-{}.json"
"""In a checkpoint, for each process: what it has gathered for the next line of metrics."""
LOG_EVERY = 25
"""Optimizer steps between two lines of metrics."""
_OURS = (
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "activation_checkpointing",
    "gradient_checkpointing",
    "bf16",
    "learning_rate",
    "max_length",
    "packing",
    "padding_free",
    "dataset_kwargs",
    "assistant_only_loss",
    "completion_only_loss",
    "train_sampling_strategy",
    "save_steps",
    "save_strategy",
    "eval_strategy",
    "load_best_model_at_end",
    "push_to_hub",
    "seed",
)


@dataclass(frozen=True)
class Saving:
    """Where, when and how many checkpoints are written."""

    folder: RunFolder
    origin: Origin
    points: SavePoints
    keep: int
    best: BestWeights | None = None


class StageTrainer:
    """Mixed in before a TRL trainer."""

    args: Any
    state: Any
    accelerator: Any
    optimizer: Any
    is_deepspeed_enabled: bool
    saving: Saving
    """Set by ``run_training``; without it nothing is saved."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RunError on a non-finite loss, before it reaches the weights."""
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if not torch.isfinite(loss).all():
            raise RunError(
                f"the loss is {float(loss)} after step {self.state.global_step}: nothing was "
                "written into the weights; lower the learning rate or look at the data."
            )
        return loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL makes it, fit for ZeRO."""
        return without_empty_groups(super().create_optimizer(*args, **kwargs))  # type: ignore[misc]

    def _send_telemetry(self) -> None:
        """TRL reports runs to its makers by default; a person's run is theirs."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The run folder has a card of its own."""

    def _get_output_dir(self, trial: Any) -> str:
        saving = getattr(self, "saving", None)
        kept = saving.folder.checkpoints / WRITING if saving else self.args.output_dir
        return str(kept)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The whole state into a checkpoint of the run folder; every process calls it."""
        saving, step = self.saving, self.state.global_step
        ranks = saving.folder.ranks
        with ExitStack() as stack:
            if ranks.main:
                stack.enter_context(saving.folder.new_checkpoint(step, saving.origin))
            ranks.wait()  # under ZeRO each process writes its share
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            place = Path(self._get_output_dir(trial)) / f"checkpoint-{step}"
            (place / NOTED.format(ranks.rank)).write_text(json.dumps(self._noted(place)), "utf-8")
            ranks.wait()
        if ranks.main:
            prune(saving.folder.checkpoints, saving.keep)
        ranks.wait()
        saving.points.saved()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Moments are looked at before they move anything; DeepSpeed keeps its own elsewhere."""
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None or self.is_deepspeed_enabled:
            return
        for number, (parameter, moments) in enumerate(self.optimizer.state.items()):
            if isinstance(parameter, torch.Tensor):
                where = f"optimizer, parameter {number}"
                check_tensors(moments.items(), parameter.shape, where)

    def _noted(self, place: Path) -> dict[str, Any]:
        """What transformers leaves out of a checkpoint: sums since the last line of metrics, and
        the best weights."""
        ours: Any = self
        return {
            "loss": ours._tr_loss.item(),
            "last": ours._globalstep_last_logged,
            "tokens": ours._total_train_tokens,
            "means": {name: list(values) for name, values in ours._metrics["train"].items()},
            "best": self.saving.best.save(place) if self.saving.best else None,
        }

    def load_noted(self, checkpoint: Path) -> None:
        """Inverse of what ``_save_checkpoint`` noted, once transformers has set all to nothing."""
        ours: Any = self
        file = checkpoint / NOTED.format(self.saving.folder.ranks.rank)
        noted = json.loads(file.read_text("utf-8"))
        ours._tr_loss += noted["loss"]
        ours._globalstep_last_logged = noted["last"]
        ours._total_train_tokens = noted["tokens"]
        for name, values in noted["means"].items():
            ours._metrics["train"][name] = values
        if self.saving.best:
            self.saving.best.load(checkpoint, noted["best"])


def run_training(
    trainer: Any,
    folder: RunFolder,
    origin: Origin,
    *,
    every: int,
    minutes: float,
    keep: int,
    loss: Callable[[], float] | None = None,
) -> dict[str, float]:
    """All steps, from the folder's newest checkpoint on; how many there were, and seconds.

    Checkpoints come ``every`` so many steps and ``minutes``, and ``keep`` of them stay. With a
    held-out ``loss`` it is measured ``every`` so many steps, and the best weights are handed over.
    Raises UsageError for a checkpoint of another ``origin``, Interrupted where somebody stopped it.
    """
    origin = replace(origin, launch={"processes": world_size(), "mode": mode()})
    points = SavePoints(every=every, minutes=minutes, ranks=folder.ranks)
    best = None
    if loss is not None:
        best = BestWeights(trainer.model, folder.path / "best" / BEST, folder.ranks, loss)
    trainer.saving = Saving(folder, origin, points, keep, best)
    checkpoint = folder.checkpoint(origin)
    trainer.add_callback(_Saves(trainer, checkpoint))
    started = time.perf_counter()
    with deferred():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - started
    figures = {"steps": trainer.state.global_step, "training_seconds": round(seconds, 2)}
    return figures | (best.restore() if best else {})


class _Saves(TrainerCallback):
    """Asks for checkpoints where they are due; ends the run where somebody asked it to."""

    def __init__(self, trainer: Any, checkpoint: Path | None) -> None:
        self._trainer, self._checkpoint = trainer, checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._checkpoint is not None:
            self._trainer.load_noted(self._checkpoint)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saving, step = self._trainer.saving, state.global_step
        last = step >= state.max_steps
        if saving.best and (last or step % saving.points.every == 0):
            log = control.should_log  # transformers takes any line of metrics for the one it owes
            saving.best.look(step)
            control.should_log = log
        due = saving.points.due(step)
        # After the last step there is nothing to go on with, unless the run is to stop here.
        control.should_save = due and (not last or saving.points.interrupted())

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.saving.points.interrupted():
            raise Interrupted(f"the state after step {state.global_step} is saved")


def save_trained(
    model: Any, tokenizer: Any, folder: RunFolder, *, card: str, autocast: bool
) -> None:
    """The plain Hugging Face folder, by the main process, with whole tensors.

    bf16 weights where that was computed in (``autocast``); adapters stay as they learned.
    """
    adapted = has_adapters(model)
    if autocast and not adapted and not is_sharded(model):
        model = model.to(torch.bfloat16)
    weights = whole_tensors(model)
    if not folder.ranks.main:
        return
    if autocast and not adapted:
        model.config.dtype = torch.bfloat16
        weights = {
            name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
    whole = None if adapted and not is_sharded(model) else weights
    save_folder(model, tokenizer, folder.path, card=card, state_dict=whole)


def without_printing(trainer: Any) -> Any:
    """The trainer, less its habit of printing every log line to standard output."""
    trainer.remove_callback(PrinterCallback)
    return trainer


class RunLog(TrainerCallback):
    """Metrics of TRL's log lines to metrics.jsonl under the names we use; to the board, too."""

    def __init__(
        self,
        metrics: MetricsWriter,
        names: Mapping[str, str],
        board: Board,
        shown: Callable[[], None],
    ) -> None:
        """``names``: TRL's name to ours. ``shown``: of ``console.watch``."""
        self._metrics, self._names, self._board, self._shown = metrics, names, board, shown

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run starts further along; the model is partitioned by now, if it is to be."""
        check_partitioned(kwargs["model"], Ranks(args.process_index, args.world_size))
        self._board.move(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One optimizer step is done; ZeRO-3 may have kept small parameters whole after it."""
        check_partitioned(kwargs["model"], Ranks(args.process_index, args.world_size))
        self._board.move(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """TRL says how training goes; a good moment for freed memory, too."""
        give_back()
        found = {ours: logs[name] for name, ours in self._names.items() if name in logs}
        summary = "loss" not in logs and not any(name.startswith("eval_") for name in logs)
        if summary or not found or not state.is_world_process_zero:
            return
        self._metrics.write(state.global_step, found)
        self._board.tell(found)
        self._shown()


def training_arguments(
    kind: Any,
    section: str,
    *,
    ours: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Any:
    """A TRL config of class ``kind``: common settings, the stage's, then the recipe's ``trainer``.

    UsageError on an argument TRL does not know, does not take, or that the recipe sets elsewhere.
    """
    known = {field.name for field in fields(kind) if field.init}
    for name in extra:
        if name in _OURS or name not in known:
            why = "is set by the recipe's own keys" if name in _OURS else "is unknown to TRL"
            raise UsageError(f"{section}.trainer.{name} {why} ({kind.__name__}); leave it out.")
    common = {
        "gradient_checkpointing": None,  # the old name; transformers 5 mirrors the new one
        "train_sampling_strategy": "sequential",
        "logging_steps": LOG_EVERY,
        "save_strategy": "no",  # checkpoints come when they are due, see run_training
        "weight_decay": 0.0,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        # All weights take part in every step: torch need not look for those that do not, and then
        # complain that it found none.
        "ddp_find_unused_parameters": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
    }
    try:
        return kind(**(common | dict(ours) | dict(extra)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{section}.trainer is not accepted by TRL: {error}") from error
