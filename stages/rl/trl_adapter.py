"""Every name of TRL's PPO that this project touches, in one file with a contract test.

TRL 1.12 is the last release that carries PPO (``trl.experimental.ppo``). Its constructor sets up
policy, reference, reward model, PEFT, accelerator, optimizer, schedule, callbacks and saving, and
we keep all of that. Its ``train()`` is single-turn with the critic on the actor's trunk and is
replaced by ``stages.rl.trainer``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PrinterCallback

from stages.common.adapters import as_started
from stages.common.engine import Descent, without_empty_groups
from stages.common.logprobs import at_actions
from stages.common.ranks import ALONE, Ranks, world_size
from stages.common.sharding import check_partitioned, is_sharded
from stages.rl.critic.heads import ScalarHead
from stages.rl.lower import LowerLayers, lower_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "experimental" notices: the pin is deliberate
    from trl.experimental.ppo import PPOConfig, PPOTrainer


@dataclass
class AsymmetricPPOConfig(PPOConfig):
    """TRL's PPO vocabulary plus what a multi-turn run adds.

    Batch sizes of TRL's single-turn loop are inert here: a recipe speaks episodes.
    """

    whiten_min_std: float = field(default=1e-4, metadata={"help": "Below it, only centre."})
    value_learning_rate: float = field(
        default=1e-3, metadata={"help": "Peak rate of a value head on the actor's trunk."}
    )


class ValueModel(nn.Module):
    """What stands in TRL's place for a joint value model: nothing, or a head and no trunk.

    TRL joins policy and value model in one module for one optimizer. A critic that lives apart
    adds nothing to it; one that shares the actor's trunk adds its head, which reads the states of
    the policy's own forward, so that the trunk is computed once.
    """

    base_model_prefix = "backbone"

    def __init__(self, head: nn.Module | None) -> None:
        super().__init__()
        self.backbone = _NoBackbone()
        self.score = nn.Identity()
        self.head = head


class _NoBackbone(nn.Module):
    def forward(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=[torch.zeros(())])


class NoRewardModel(nn.Module):
    """Stand-in for runs without a reward model: TRL moves whatever it is given to the device, and
    DeepSpeed, which prepares it, asks for the type of its first parameter."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.nothing = nn.Parameter(torch.zeros(1), requires_grad=False)


class TrlPPOSetup(PPOTrainer):
    """TRL's constructor, handed what it insists on; and its parts under our names."""

    def __init__(
        self,
        config: AsymmetricPPOConfig,
        *,
        actor: Any,
        reference: Any | None,
        reward_model: nn.Module | None,
        tokenizer: Any,
        value_head: ScalarHead | None = None,
        autocast: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """``reference``: None where the actor carries adapters, which are then switched off.
        ``value_head``: (n, H) states to (n,) values, on the actor's trunk; None: none.
        ``autocast``: compute in bfloat16, from whatever the weights are kept in.
        """
        self.value_head, self.ranks = value_head, ranks
        self.lower: LowerLayers | None = None
        self.autocast = autocast
        stop = getattr(actor.generation_config, "eos_token_id", None)
        with warnings.catch_warnings():
            # TRL 1.12 reads attributes that transformers 5 has renamed; nothing a user can mend.
            warnings.simplefilter("ignore", FutureWarning)
            super().__init__(
                args=config,
                processing_class=tokenizer,
                model=actor,
                ref_model=reference,
                reward_model=reward_model or NoRewardModel(actor.config),
                train_dataset=_inert_dataset(config),
                eval_dataset=_inert_dataset(config),
                value_model=ValueModel(value_head),
            )
        self.remove_callback(PrinterCallback)  # metrics.jsonl and the progress bar tell it all
        # TRL overwrites the stop token (None unless asked for); a saved actor must keep its own.
        actor.generation_config.eos_token_id = stop
        self.descent = Descent(
            self.accelerator, self.model, self.optimizer, self._moved, ranks=ranks
        )
        check_partitioned(self.actor, ranks)

    def create_optimizer(self, model: Any = None) -> Any:
        """One optimizer for all; a value head starts from nothing and has a rate of its own."""
        optimizer = without_empty_groups(super().create_optimizer(model))
        if self.value_head is not None:
            head = list(self.value_head.parameters())
            own = {id(p) for p in head}
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in own]
            rate = self.args.value_learning_rate
            optimizer.add_param_group({"params": head, "lr": rate, "weight_decay": 0.0})
        # ZeRO will put flat pieces in their places.
        self._moved = [list(group["params"]) for group in optimizer.param_groups]
        return optimizer

    def step_schedule(self) -> None:
        """The learning rate of the next iteration; it falls while the critic warms up, too."""
        with warnings.catch_warnings():  # torch expects a step of the optimizer before each
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            self.lr_scheduler.step()

    def scale_rate(self, factor: float) -> float:
        """Multiply the actor's learning rate, now and for the rest of its schedule; the new one.

        It lies in the states of schedule and optimizer, so checkpoints carry it.
        """
        groups = self.optimizer.param_groups
        for number in range(len(groups) - (self.value_head is not None)):
            groups[number]["lr"] *= factor
            self.lr_scheduler.base_lrs[number] *= factor
        return float(groups[0]["lr"])

    @property
    def actor(self) -> Any:
        """The policy, unwrapped."""
        return self.learned.policy

    @cached_property  # accelerate looks through the installed packages each time it unwraps
    def learned(self) -> nn.Module:
        """All that the optimizer moves, unwrapped: the actor, and a value head on its trunk."""
        wrapper: nn.Module = self.accelerator.unwrap_model(self.model)
        return wrapper

    def cut_below(self, upper: int | None) -> None:
        """Only ``upper`` layers learn: what is below may be computed once (see ``lower``)."""
        if not is_sharded(self.actor):
            with self.computing():
                self.lower = lower_layers(self.actor, upper)

    def lower_states(self, ids: Tensor) -> Tensor:
        """(B, T, H) states of right-padded rows below the layers that learn, on the CPU or GPU
        where the actor is. RuntimeError if all layers learn."""
        if self.lower is None:
            raise RuntimeError("lower_states() where no layer stands still")
        with self.computing():
            return self.lower.states(ids.to(self.accelerator.device))

    def actor_logits(
        self,
        ids: Tensor,
        action_mask: Tensor,
        read: Callable[[Tensor], None] | None = None,
        *,
        below: Tensor | None = None,
    ) -> Tensor:
        """(n, V) logits that chose the n action tokens of right-padded rows (B, T), row by row.

        ``read`` is handed the last hidden states they come from, (n, H), within that forward.
        ``below``: ``lower_states`` of these rows, from which it then begins.

        Through the prepared wrapper, so that DDP and ZeRO see the forward. Attention is causal
        and padding stands on the right: no action token ever looks at padding, so no attention
        mask is passed, and none can be inferred wrongly from ids.
        """
        head = self.actor.get_output_embeddings()
        with self.computing(), at_actions(head, action_mask, read), self._from(ids, below) as begin:
            output, _ = self.model(**begin, use_cache=False)
        logits: Tensor = output.logits[0]
        return logits

    def actor_logits_and_values(
        self, ids: Tensor, action_mask: Tensor, first: Tensor, *, below: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The logits, and what the value head says of the states before the turns whose ``first``
        action tokens are marked (B, T), row by row; None without a head."""
        head, outputs = self.value_head, []
        if head is None:
            return self.actor_logits(ids, action_mask, below=below), None
        logits = self.actor_logits(
            ids,
            action_mask,
            lambda states: outputs.append(head(states[first[action_mask]])),
            below=below,
        )
        return logits, outputs[0]

    def reference_logits(
        self, ids: Tensor, action_mask: Tensor, *, below: Tensor | None = None
    ) -> Tensor:
        """The same by the frozen reference; by the actor as it was before RL, its adapters off or
        those of SFT in their place, where it carries adapters."""
        if self.ref_model is not None:
            return self._frozen_logits(self.ref_model, ids, action_mask)
        with as_started(self.actor):
            return self._frozen_logits(self.actor, ids, action_mask, below)

    def computing(self) -> AbstractContextManager[Any]:
        """In which every forward of the actor runs, whoever asks for it."""
        device = self.accelerator.device.type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self.autocast)

    def _frozen_logits(
        self, model: Any, ids: Tensor, action_mask: Tensor, below: Tensor | None = None
    ) -> Tensor:
        narrowed = at_actions(model.get_output_embeddings(), action_mask)
        with torch.no_grad(), self.computing(), narrowed, self._from(ids, below) as begin:
            logits: Tensor = model(**begin, use_cache=False).logits[0]
        return logits

    @contextmanager
    def _from(self, ids: Tensor, below: Tensor | None) -> Iterator[dict[str, Tensor]]:
        """What a forward is given to begin with: tokens, or what is known of them already."""
        if below is None or self.lower is None:
            yield {"input_ids": ids}
            return
        with self.lower.above():
            yield {"inputs_embeds": below}


def ppo_config(output_dir: Path, *, iterations: int, **arguments: Any) -> AsymmetricPPOConfig:
    """TRL's config for a run of ``iterations`` scheduler steps on whatever device there is.

    Raises TypeError on an argument TRL does not know.
    """
    on_gpu = torch.cuda.is_available()
    defaults: dict[str, Any] = {
        "output_dir": str(output_dir),
        # TRL's schedule counts batches of one episode from each process.
        "total_episodes": iterations * world_size(),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_mini_batches": 1,
        "num_sample_generations": 0,
        "gradient_checkpointing": None,  # the old name; transformers 5 mirrors the new one
        "activation_checkpointing": False,
        "bf16": False,
        "use_cpu": not on_gpu,
        "disable_tqdm": True,
        "report_to": [],
        "weight_decay": 0.0,
        "adam_epsilon": 1e-8,
    }
    return AsymmetricPPOConfig(**(defaults | arguments))


def _inert_dataset(config: AsymmetricPPOConfig) -> Dataset:
    """TRL wants a dataset to size its loader; ours come from environments instead."""
    rows = max(config.per_device_train_batch_size, config.per_device_eval_batch_size)
    return Dataset.from_dict({"input_ids": [[0]] * rows})
