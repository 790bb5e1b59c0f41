"""What the SFT and reward stages share in driving TRL's trainers.

Fixed data order, atomic checkpoints, metrics to the run folder, one progress line, and no word
to anybody else: telemetry, hub and model cards are off.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import integration_utils

from stages.common.adapters import has_adapters
from stages.common.engine import whole_tensors
from stages.common.errors import RunError, UsageError
from stages.common.models import save_folder
from stages.common.ranks import Ranks, world_size
from stages.common.run_folder import (
    MetricsWriter,
    RunFolder,
    checkpoint_step,
    read_json,
    write_json,
)
from stages.common.sharding import check_partitioned, is_sharded, mode

LAUNCH = "launch.json"
"""In a checkpoint: how many processes made it, and how."""
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
    "eval_strategy",
    "load_best_model_at_end",
    "push_to_hub",
    "seed",
)


class StageTrainer:
    """Mixed in before a TRL trainer."""

    args: Any
    state: Any
    accelerator: Any

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RunError on a non-finite loss, before it reaches the weights."""
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if not torch.isfinite(loss).all():
            raise RunError(
                f"the loss is {float(loss)} after step {self.state.global_step}: nothing was "
                "written into the weights; lower the learning rate or look at the data."
            )
        return loss

    def _send_telemetry(self) -> None:
        """TRL reports runs to its makers by default; a person's run is theirs."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The run folder has a card of its own."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / ".writing")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Written under another name, then renamed: a kill leaves whole checkpoints only."""
        target, writing = Path(self.args.output_dir), Path(self._get_output_dir(trial))
        if self.args.should_save:
            shutil.rmtree(writing, ignore_errors=True)
        self.accelerator.wait_for_everyone()  # under ZeRO each process writes its share
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if not self.args.should_save:
            return
        (new,) = writing.iterdir()
        write_json(new / LAUNCH, {"processes": world_size(), "mode": mode()})
        old = list(target.glob("checkpoint-*"))
        shutil.rmtree(target / new.name, ignore_errors=True)
        os.replace(new, target / new.name)
        for folder in old:
            if folder.name != new.name:
                shutil.rmtree(folder, ignore_errors=True)


def run_training(trainer: Any, folder: RunFolder) -> dict[str, float]:
    """All steps, from the folder's newest checkpoint on; how many there were, and seconds."""
    checkpoint = folder.checkpoint()
    if checkpoint is not None:
        _check_launch(checkpoint)
        folder.metrics.keep_until(checkpoint_step(checkpoint))
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - started
    return {"steps": trainer.state.global_step, "training_seconds": round(seconds, 2)}


def _check_launch(checkpoint: Path) -> None:
    """Under ZeRO a checkpoint lies in as many pieces as there were processes."""
    file = checkpoint / LAUNCH
    then = read_json(file) if file.is_file() else {"processes": 1, "mode": "one"}
    now = {"processes": world_size(), "mode": mode()}
    if then != now:
        raise UsageError(
            f"{checkpoint} was made by {then['processes']} processes ({then['mode']}), and this is "
            f"a run of {now['processes']} ({now['mode']}), which would see other batches or cannot "
            "put its pieces together; launch it as before, or start anew with --resume never."
        )


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
    """Metrics of TRL's log lines to metrics.jsonl under the names we use; the progress bar."""

    def __init__(
        self, metrics: MetricsWriter, names: Mapping[str, str], advance: Callable[..., None]
    ) -> None:
        """``names``: TRL's name to ours. ``advance``: of ``console.progress``."""
        self._metrics, self._names, self._advance = metrics, names, advance
        self._step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run starts further along; the model is partitioned by now, if it is to be."""
        check_partitioned(kwargs["model"], Ranks(args.process_index, args.world_size))
        self._move(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One optimizer step is done; ZeRO-3 may have kept small parameters whole after it."""
        check_partitioned(kwargs["model"], Ranks(args.process_index, args.world_size))
        self._move(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """TRL says how training goes."""
        found = {ours: logs[name] for name, ours in self._names.items() if name in logs}
        summary = "loss" not in logs and not any(name.startswith("eval_") for name in logs)
        if summary or not found or not state.is_world_process_zero:
            return
        self._metrics.write(state.global_step, found)
        if "loss" in logs:
            self._advance(0, note=f"loss {logs['loss']:.3f}")

    def _move(self, step: int) -> None:
        self._advance(step - self._step)
        self._step = step


def check_trackers(names: Sequence[str]) -> None:
    """Raises UsageError for a tracker transformers does not know, or whose package is missing."""
    known = sorted(integration_utils.INTEGRATION_TO_CALLBACK)
    # transformers never lists flyte as available, even where it is.
    usable = {*integration_utils.get_available_reporting_integrations(), "flyte"}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            tail = f"; did you mean {near[0]}" if near else ""
            raise UsageError(
                f"tracking.report_to has {name!r}, expected any of {', '.join(known)}{tail}."
            )
        if name not in usable:
            raise UsageError(
                f"tracking.report_to has {name!r}, but its Python package is not installed; "
                "install it or take the name out."
            )


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
        "save_strategy": "steps",
        "weight_decay": 0.0,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
    }
    try:
        return kind(**(common | dict(ours) | dict(extra)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{section}.trainer is not accepted by TRL: {error}") from error
