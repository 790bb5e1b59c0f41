"""Small worlds whose truth can be enumerated, and models of six tokens to act in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stages.common.ranks import ALONE, Ranks
from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Action, Trajectory, Turn

VOCABULARY = 6
START, BETWEEN = 1, 2


def small_actor(seed: int = 0) -> Any:
    """A Llama with six tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                bos_token_id=1,
                eos_token_id=0,
                pad_token_id=0,
                initializer_range=0.4,
            )
        )


def adapted_actor(seed: int = 0) -> Any:
    """The same under adapters that already do something."""
    from stages.common.adapters import attach
    from stages.recipe.model import LoraSection

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = attach(small_actor(), LoraSection(rank=4, alpha=8), base="small")
        for name, parameter in adapted.named_parameters():
            if ".lora_B." in name:
                parameter.data.normal_(std=0.02)
    return adapted


def small_tokenizer() -> Any:
    """Six words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {str(i): i for i in range(VOCABULARY)}
    core = Tokenizer(models.WordLevel(words, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="0", eos_token="0")


def setup(
    folder: Path,
    *,
    iterations: int = 1,
    learning_rate: float = 1e-3,
    ranks: Ranks = ALONE,
    lora: bool = False,
    value_head: Any = None,
    **options: Any,
) -> Any:
    """TRL's set-up around the small actor and its frozen copy (``lora``: its adapters off)."""
    from stages.rl.trainer import AsymmetricPPOTrainer
    from stages.rl.trl_adapter import ppo_config

    actor = adapted_actor() if lora else small_actor()
    reference = None if lora else small_actor().requires_grad_(False)
    config = ppo_config(
        folder, iterations=iterations, learning_rate=learning_rate, seed=3, **options
    )
    return AsymmetricPPOTrainer(
        config,
        actor=actor,
        reference=reference,
        reward_model=None,
        tokenizer=small_tokenizer(),
        value_head=value_head,
        ranks=ranks,
    )


def episode(
    turns: list[tuple[list[int], list[int], float]],
    *,
    actor: Any = None,
    key: tuple[int, ...] = (),
    truncated: bool = False,
    version: int = 0,
) -> Trajectory:
    """From (prompt ids, action ids, success reward) per turn; log-probs are the actor's own."""
    made = []
    for index, (prompt, action, reward) in enumerate(turns):
        logprobs = [0.0] * len(action) if actor is None else score(actor, prompt, action)
        made.append(
            Turn(
                index=index,
                messages=({"role": "user", "content": f"turn {index}"},),
                action=Action(" ".join(map(str, action))),
                observation=({"role": "tool", "content": f"seen {action[0] if action else ''}"},),
                rewards={"success": reward} if reward else {},
                prompt_ids=tuple(prompt),
                action_ids=tuple(action),
                logprobs=tuple(logprobs),
            )
        )
    return Trajectory(
        task_id="t",
        kind="k",
        group="g",
        goal="find it",
        turns=tuple(made),
        terminated=not truncated,
        truncated=truncated,
        success=any(t.rewards for t in made),
        max_turns=4,
        key=key,
        actor_version=version,
    )


def score(actor: Any, prompt: list[int], action: list[int]) -> list[float]:
    """log π of an action, token by token, by a plain forward."""
    with torch.no_grad():
        logits = actor(torch.tensor([[*prompt, *action]])).logits[0].log_softmax(-1)
    return [float(logits[len(prompt) + k - 1, token]) for k, token in enumerate(action)]


def bandit_episodes(
    actor: Any, count: int, iteration: int, *, version: int = 0, good: int = 3
) -> list[Trajectory]:
    """Two turns of one token each; success at the end if the *first* action was ``good``."""
    done = []
    for number in range(count):
        rng = keyed_generator(11, iteration, number)
        first = _sample(actor, [START], rng)
        second = _sample(actor, [START, first, BETWEEN], rng)
        turns = [
            ([START], [first], 0.0),
            ([START, first, BETWEEN], [second], float(first == good)),
        ]
        key = (11, iteration, number)
        done.append(episode(turns, actor=actor, key=key, version=version))
    return done


def _sample(actor: Any, prompt: list[int], rng: np.random.Generator) -> int:
    with torch.no_grad():
        p = actor(torch.tensor([prompt])).logits[0, -1].softmax(-1).double().numpy()
    return int(rng.choice(VOCABULARY, p=p / p.sum()))
