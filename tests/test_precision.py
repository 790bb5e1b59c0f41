"""bfloat16 with float32 master weights, activation checkpointing, logits at actions only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.adapted import LORA, World, tensors

SLOW_WHOLE = [pytest.param(None, marks=pytest.mark.full, id="whole"), pytest.param(LORA, id="lora")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A recipe and its data; nothing is trained yet."""
    return World(tmp_path_factory.mktemp("precision"))


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How often a layer's MLP ran in training, and in which types."""
    seen: dict[str, Any] = {"runs": 0, "weights": set(), "states": set()}
    real = LlamaMLP.forward

    def watched(self: Any, states: Any) -> Any:
        learns = self.training and torch.is_grad_enabled()
        seen["runs"] += learns  # before the call: a recomputation stops where it has enough
        out = real(self, states)
        if learns:
            seen["weights"] |= {p.dtype for p in self.parameters() if p.requires_grad}
            seen["states"] |= {out.dtype}
        return out

    monkeypatch.setattr(LlamaMLP, "forward", watched)
    return seen


def test_steps_that_bfloat16_weights_cannot_take_up() -> None:
    """Why masters: at AdamW's usual rates most weights of a bf16 model would not move at all."""
    torch.manual_seed(0)
    start = torch.randn(4096) * 0.12
    for dtype, least, most in ((torch.bfloat16, 0.0, 0.05), (torch.float32, 1.0, 1.0)):
        weight = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.0)
        for _ in range(20):
            weight.grad = torch.sign(start).to(dtype)
            optimizer.step()
        share = float((weight != start.to(dtype)).float().mean())
        assert least <= share <= most


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_bfloat16_learns_in_float32(world: World, layers: dict[str, Any], lora: Any) -> None:
    name = "lora" if lora else "whole"
    half = {"model__dtype": "bfloat16", "model__lora": lora}
    sft = world.aac("sft", f"sft-{name}", **half)
    assert layers["weights"] == {torch.float32} and layers["states"] == {torch.bfloat16}
    assert {t.dtype for t in tensors(sft).values()} == {torch.float32 if lora else torch.bfloat16}
    layers |= {"weights": set(), "states": set()}
    reward = world.aac("train-reward", f"reward-{name}", "--sft", sft, **half)
    assert layers["weights"] == {torch.float32} and layers["states"] == {torch.bfloat16}
    assert {t.dtype for t in tensors(reward).values()} <= {torch.float32, torch.bfloat16}
    layers |= {"weights": set(), "states": set()}
    found = world.rl(f"rl-{name}", sft=f"sft-{name}", rl__actor__learning_rate=1e-5, **half)
    assert layers["weights"] == {torch.float32} and layers["states"] == {torch.bfloat16}
    # Sampled from a bf16 copy, whose distance from the bf16 autocast forward is logged.
    assert 0 < found[-1]["sampling/logprob_gap"] < 0.1
    assert found[0]["actor/kl"] == pytest.approx(0, abs=1e-6)
    AutoModelForCausalLM.from_pretrained(world.root / f"rl-{name}")


@pytest.mark.parametrize("lora", SLOW_WHOLE)
def test_activation_checkpointing_computes_twice_and_changes_nothing(
    world: World, layers: dict[str, Any], lora: Any
) -> None:
    ran: dict[tuple[str, bool], int] = {}
    for on in (False, True):
        kind = f"{'lora' if lora else 'whole'}-{'on' if on else 'off'}"
        over = {"model__lora": lora, "model__activation_checkpointing": on}
        for command, words in (
            ("sft", ()),
            ("train-reward", ("--sft", world.root / f"sft-{kind}")),
            ("rl", ("--sft", world.root / f"sft-{kind}")),
        ):
            layers["runs"] = 0
            world.aac(command, f"{command}-{kind}", *words, **over)
            ran[command, on] = layers["runs"]
    for command in ("sft", "train-reward", "rl"):
        assert ran[command, True] == 2 * ran[command, False] > 0
        one, two = (
            tensors(world.root / f"{command}-{'lora' if lora else 'whole'}-{end}")
            for end in ("off", "on")
        )
        for name, tensor in one.items():
            assert torch.allclose(two[name], tensor, atol=1e-6), (command, name)


def test_activation_checkpointing_gives_equal_gradients() -> None:
    from tests.rl.worlds import small_actor

    ids = torch.tensor([[1, 3, 2, 4, 5]])
    grads = []
    for on in (False, True):
        actor = small_actor().train()
        if on:
            actor.activation_checkpointing_enable()
        actor(ids).logits.log_softmax(-1).square().sum().backward()
        grads.append([p.grad for p in actor.parameters()])
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lora", SLOW_WHOLE)
def test_the_output_layer_sees_action_positions_only(
    world: World, monkeypatch: pytest.MonkeyPatch, lora: Any
) -> None:
    """Of the learner's rows, by the actor and by its reference."""
    from stages.rl import trl_adapter

    seen: list[tuple[int, int]] = []
    real = trl_adapter.at_actions

    @contextmanager
    def watched(head: Any, mask: Any, read: Any = None) -> Iterator[None]:
        with real(head, mask, read):
            note = head.register_forward_hook(
                lambda module, given, out: seen.append((out.shape[-2], int(mask.sum())))
            )
            yield
            note.remove()

    monkeypatch.setattr(trl_adapter, "at_actions", watched)
    name = "head-lora" if lora else "head"
    world.aac("sft", f"sft-{name}", model__lora=lora)
    options = {"rl__iterations": 1, "rl__forgetting__every": 0}  # which looks at rows, too
    world.rl(name, sft=f"sft-{name}", model__lora=lora, **options)
    assert len(seen) == 3  # all rows by the reference, two minibatches by the actor
    assert all(computed == actions for computed, actions in seen)
