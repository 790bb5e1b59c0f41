"""Training in several processes: the only file that names accelerate and DeepSpeed.

Everything else sees ``Ranks``, whole tensors by name, and a ``Descent`` that goes downhill alike on
one process, under DDP, and under ZeRO.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from stages.common.adapters import has_adapters
from stages.common.errors import RunError
from stages.common.interrupts import Interrupted, asked, deferred
from stages.common.moments import check_moments
from stages.common.ranks import ALONE, Ranks, launched
from stages.common.sharding import is_sharded, zero_section, zero_stage

Tensors = dict[str, Tensor]


def join(timeout_s: float) -> Ranks:
    """Meet the processes this one was launched with; once per process, before anything is loaded.

    ``timeout_s``: how long a collective call waits for the others before it gives up.
    """
    if not launched():
        return ALONE
    from accelerate import PartialState

    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    if zero_stage() and not on_gpu:
        _build_nothing()
        options["backend"] = "gloo"
    state = PartialState(cpu=not on_gpu and not zero_stage(), **options)
    return Ranks(state.process_index, state.num_processes)


def leave() -> None:
    """Part from the other processes, at the end of a run that went well."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@contextmanager
def loading_in_shares() -> Iterator[None]:
    """Inside, ``from_pretrained`` under ZeRO-3 keeps each process's share of a model only.

    Nothing is partitioned outside: the critic and what else belongs whole to every process is
    loaded there.
    """
    if zero_stage() != 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    section = {k: v for k, v in zero_section().items() if v != "auto"}
    sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    known = HfDeepSpeedConfig(sizes | {"zero_optimization": section})
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del known  # transformers holds it weakly, so it has to live until here


@contextmanager
def gathered(parameters: Iterable[nn.Parameter], *, write: bool = False) -> Iterator[None]:
    """Inside, partitioned parameters are whole; ``write``: what rank 0 writes, all keep."""
    split = [p for p in parameters if hasattr(p, "ds_id")]
    if not split:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(split, modifier_rank=0 if write else None):
        yield


def whole_tensors(model: nn.Module) -> Tensors:
    """Parameters (tied ones once) and kept buffers by name, whole, on the CPU.

    Every process must call it; only the main one is given anything where they are partitioned.
    Of a model with adapters only what learns: the rest lies on disk.
    """
    sharded, found = is_sharded(model), {}
    adapted = has_adapters(model)
    for name, parameter in model.named_parameters():
        if adapted and not parameter.requires_grad:
            continue
        with gathered([parameter]):
            if not sharded or _is_main():
                found[name] = parameter.detach().to("cpu", copy=True)
    kept = [] if adapted else _buffers(model)
    return found | {name: b.detach().to("cpu", copy=True) for name, b in kept}


def load_whole_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Inverse of ``whole_tensors``; every process has all ``tensors``. KeyError if one is missing.

    Under ZeRO the optimizer's own full-precision copy is written, too.
    """
    adapted = has_adapters(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if adapted and not parameter.requires_grad:
                continue
            with gathered([parameter], write=True):
                parameter.copy_(tensors[name])
            if parameter.requires_grad:
                _write_partition(parameter, tensors[name], None)
        for name, buffer in [] if adapted else _buffers(model):
            buffer.copy_(tensors[name])


def without_empty_groups(optimizer: Any) -> Any:
    """The optimizer, less groups in which nothing learns: norms and biases, beside adapters.

    ZeRO leaves them out and schedules do not, so that the two would not fit.
    """
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return optimizer


class Descent:
    """Backward, clip and step of a prepared model, whatever it was prepared for.

    Losses are sums over this process's rows; gradients are *added up* over processes.
    """

    def __init__(
        self, accelerator: Any, model: Any, optimizer: Any, groups: Sequence[Any], ranks: Ranks
    ) -> None:
        """``groups``: the optimizer's parameters, group by group, as it was made with them."""
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.parameters = [p for group in groups for p in group]
        self.ranks = ranks
        self._sizes = [len(group) for group in groups]
        self._zero = zero_stage() > 0
        self._finite = True

    def accumulate(self, loss: Callable[[], Tensor], *, last: bool) -> None:
        """Add one loss's gradients; ``last``: the step comes next."""
        # DDP and ZeRO take the mean over processes.
        if self._zero:
            self.model.set_gradient_accumulation_boundary(last)
            found = loss()
            self._finite = self._finite and bool(torch.isfinite(found))
            self.model.backward(found * self.ranks.size)
            return
        with ExitStack() as stack:
            if self.ranks.size > 1 and not last:
                stack.enter_context(self.accelerator.no_sync(self.model))
            self.accelerator.backward(loss() * self.ranks.size)

    def step(self, max_grad_norm: float) -> float:
        """One optimizer step on what was accumulated; the gradient's norm before clipping.

        Where it is not finite it is returned and nothing written. (ZeRO tells the norm only after
        its step, so there the loss is what is looked at before.)
        """
        if self._zero:
            if self.ranks.anyone(not self._finite):
                return float("nan")
            self.model.optimizer.clip_grad = max_grad_norm
            self.model.step()
            return float(self.model.get_global_grad_norm())
        trained = [p for p in self.parameters if p.requires_grad]
        norm = float(self.accelerator.clip_grad_norm_(trained, max_grad_norm))
        # accelerate's wrapper adds what ZeRO and float16 need, and a look at installed packages.
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if math.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """As torch's optimizers have it, with whole tensors: it fits any number of processes."""
        if not self._zero:
            state: dict[str, Any] = self.optimizer.state_dict()
            return state
        from deepspeed.utils import safe_get_full_optimizer_state

        base, flats = self._base()
        self._link_moments()
        first = base.state[flats[0]] if flats and flats[0] in base.state else {}
        moments = [k for k, v in first.items() if isinstance(v, Tensor) and v.numel() > 1]
        moved: dict[int, Any] = {}
        for number, p in enumerate(self.parameters if first else []):
            moved[number] = {k: _copy(v) for k, v in first.items() if k not in moments}
            for name in moments:
                whole = safe_get_full_optimizer_state(p, name)
                moved[number][name] = whole.reshape(getattr(p, "ds_shape", p.shape)).cpu()
        return {"state": moved, "param_groups": self._groups(base)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``, whatever mode that was called in.

        Raises UsageError for moments that do not fit or are not finite.
        """
        check_moments(state, [getattr(p, "ds_shape", p.shape) for p in self.parameters], "actor's")
        if not self._zero:
            self.optimizer.load_state_dict(state)
            return
        base, flats = self._base()
        for group, saved in zip(base.param_groups, state["param_groups"], strict=True):
            group.update({k: v for k, v in saved.items() if k != "params"})
        if not state["state"]:
            return
        first = state["state"][0]
        for flat in flats:
            for name, value in first.items():
                moment = isinstance(value, Tensor) and value.numel() > 1
                base.state[flat][name] = torch.zeros_like(flat.data) if moment else _copy(value)
        self._link_moments()
        for number, p in enumerate(self.parameters):
            for name, value in state["state"][number].items():
                if isinstance(value, Tensor) and value.numel() > 1:
                    _write_partition(p, value, name)

    def forget(self) -> None:
        """Moments and step counts at zero, as of an optimizer that has not moved yet."""
        base = self._base()[0] if self._zero else self.optimizer
        for moments in base.state.values():
            for name, value in moments.items():
                moments[name] = value.zero_() if isinstance(value, Tensor) else type(value)()

    def _base(self) -> tuple[Any, list[Tensor]]:
        """torch's optimizer inside ZeRO's, and the flat pieces it moves on this process."""
        zero = self.model.optimizer
        names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
        return zero.optimizer, next(list(getattr(zero, n)) for n in names if hasattr(zero, n))

    def _link_moments(self) -> None:
        """ZeRO-2 ties parameters to their moments after the first step of the first group, when
        the other groups have none yet; so it is asked again."""
        zero = self.model.optimizer
        if hasattr(zero, "_hp_optimizer_states_linked"):
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()

    def _groups(self, base: Any) -> list[dict[str, Any]]:
        groups, start = [], 0
        for group, size in zip(base.param_groups, self._sizes, strict=True):
            plain = {k: v for k, v in group.items() if k != "params"}
            groups.append(plain | {"params": list(range(start, start + size))})
            start += size
        return groups


def run_launcher(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the processes by ``accelerate launch`` and wait for them.

    Raises RunError with what the first process to fail had to say, and its exit code; Interrupted
    where they stopped as they were asked to.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    before = dict(os.environ)
    os.environ.update(environment)
    logging.disable(logging.ERROR)  # torch's own account of a failure, in many lines
    given = launch_command_parser().parse_args(list(arguments))
    given.signals_to_handle = "SIGHUP,SIGQUIT"  # of the others we tell the processes ourselves
    scratch = TemporaryDirectory()
    # For other machines accelerate writes down all variables, secrets and all, in this folder.
    os.environ.setdefault("DS_ENV_FILE", str(Path(scratch.name) / "environment"))
    # It calls DeepSpeed's launcher by name, which lies beside Python's.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        with deferred(_pass_on):
            launch_command(given)
    except ChildFailedError as failed:
        raise _failure(failed) from None
    except subprocess.CalledProcessError as failed:
        raise RunError(
            f"the launcher of the machines ended with exit code {failed.returncode}; what the "
            "processes had to say stands above."
        ) from None
    except SignalException as stopped:
        raise KeyboardInterrupt from stopped
    finally:
        logging.disable(logging.NOTSET)
        scratch.cleanup()
        os.environ.clear()
        os.environ.update(before)


def _pass_on(times: int) -> None:
    """An interrupt to the processes we started: the first asks them, the second kills them."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "aacli" in child.cmdline():
                child.send_signal(signal.SIGTERM if times == 1 else signal.SIGKILL)


def _failure(failed: Any) -> BaseException:
    """One sentence: of a process that was killed before those that only missed it."""
    rank, failure = failed.get_first_failure()
    for number, other in failed.failures.items():
        if other.exitcode < 0 and other.exitcode != -signal.SIGTERM:
            rank, failure = number, other
    said = failure.message if isinstance(failure.message, dict) else {}
    if asked():
        return Interrupted(said.get("sentence", "").rstrip("."))
    if "sentence" in said and failure.exitcode > 0:
        error = RunError(said["sentence"])
        error.exit_code = failure.exitcode
        return error
    how = f"ended with exit code {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"was killed ({signal.Signals(-failure.exitcode).name})"
    return RunError(
        f"process {rank} {how}, so the others were stopped; the same command goes on from the last "
        "checkpoint, if there is one."
    )


def _build_nothing() -> None:
    """On a CPU DeepSpeed would try its compilers for minutes to speed up talk within a machine."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}


def _is_main() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that a state dict holds."""
    return [
        (f"{prefix}.{name}" if prefix else name, buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _write_partition(parameter: Any, whole: Tensor, moment: str | None) -> None:
    """This process's share of a whole tensor into ZeRO's flat copy: of the weights, or a moment."""
    from deepspeed import utils

    if hasattr(parameter, "ds_id"):
        if not hasattr(parameter, "_z3_optimizer"):
            return
        size, flat = parameter.ds_tensor.numel(), whole.flatten()
        start = size * (torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
        own = torch.zeros(size, dtype=torch.float32, device=parameter.ds_tensor.device)
        piece = flat[start : start + size]
        own[: len(piece)] = piece
        if moment is None:
            utils.safe_set_local_fp32_param(parameter, own)
        else:
            utils.safe_set_local_optimizer_state(parameter, own, moment)
    elif hasattr(parameter, "_hp_mapping"):
        value = whole.to(parameter.device)
        if moment is None:
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, moment)
