"""The layers below those that learn, computed once: the same numbers, in fewer forwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from stages.common.rows import Row
from stages.rl import lower, trl_adapter
from stages.rl.lower import KnownBelow, lower_layers
from stages.rl.rows import ActorRow, collate, demonstration
from tests.adapted import World, tensors
from tests.interaction.test_native import architectures

IDS = torch.tensor([[5, 9, 4, 8, 7, 3], [6, 2, 11, 0, 0, 0]])
MASK = torch.tensor([[False, False, True, True, False, True], [False, True, True] + [False] * 3])


def model_of(family: str, layers: int = 3) -> Any:
    given = architectures()[family].to_dict() | {"num_hidden_layers": layers}
    if layers > 2:
        given.pop("layer_types", None)
    config = type(architectures()[family]).from_dict(given)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("upper", [1, 2])
@pytest.mark.parametrize("family", ["qwen2", "mistral"])
def test_from_the_states_below_the_logits_are_the_whole_models(family: str, upper: int) -> None:
    model = model_of(family)
    halves = lower_layers(model, upper)
    assert halves is not None
    whole = model(input_ids=IDS).logits
    below = halves.states(IDS)
    with halves.above():
        above = model(inputs_embeds=below).logits
    torch.testing.assert_close(above, whole, atol=1e-5, rtol=0)
    assert not below.requires_grad and below.shape == (*IDS.shape, model.config.hidden_size)
    torch.testing.assert_close(model(input_ids=IDS).logits, whole, atol=0, rtol=0)


@pytest.mark.parametrize("upper", [None, 3, 9])
def test_nothing_is_cut_where_nothing_stands_still(upper: int | None) -> None:
    assert lower_layers(model_of("qwen2"), upper) is None


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gemma3"])
def test_a_model_that_is_no_plain_stack_is_left_whole_or_cut_rightly(family: str) -> None:
    model = model_of(family, layers=2)
    halves = lower_layers(model, 1)
    whole = model(input_ids=IDS).logits
    if halves is not None:
        below = halves.states(IDS)
        with halves.above():
            torch.testing.assert_close(model(inputs_embeds=below).logits, whole, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """SFT by adapters, from which RL goes on in the upper of two layers."""
    lora = {"rank": 4, "alpha": 8}
    made = World(tmp_path_factory.mktemp("lower"), model={"lora": lora})
    made.aac("sft", "sft")
    return made


def run(world: World, folder: str, **over: Any) -> list[dict[str, Any]]:
    options = {"rl__actor__lora_layers": 1, "rl__actor__learning_rate": 0.01, "rl__ppo__epochs": 3}
    return world.rl(folder, **(options | over))


@pytest.mark.parametrize("mixed", [0.0, 0.5])
def test_a_run_learns_the_same_and_computes_the_lower_layers_once(
    world: World, monkeypatch: pytest.MonkeyPatch, mixed: float
) -> None:
    forwards: dict[int, int] = {}
    real = LlamaDecoderLayer.forward

    def counted(self: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("use_cache"):  # learning, not playing
            place = self.self_attn.layer_idx
            forwards[place] = forwards.get(place, 0) + states.shape[0]
        return real(self, states, *args, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", counted)
    once = run(world, f"once-{mixed}", rl__ppo__sft_coef=mixed)
    counts = dict(forwards)
    forwards.clear()
    monkeypatch.setattr(trl_adapter, "lower_layers", lambda *_: None)
    again = run(world, f"again-{mixed}", rl__ppo__sft_coef=mixed)
    assert counts[0] < counts[1] and forwards[0] == forwards[1]
    for a, b in zip(once, again, strict=True):
        for name in ("kl", "policy_loss", "entropy", "grad_norm", "sft_loss"):
            ours, whole = (line.get(f"actor/{name}", 0.0) for line in (a, b))
            assert ours == pytest.approx(whole, abs=1e-5)
    one, two = (tensors(world.root / f"{name}-{mixed}") for name in ("once", "again"))
    start = tensors(world.root / "sft")
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], atol=1e-5, rtol=0)
        moved = not torch.equal(tensor, start[name])
        assert moved == (".layers.1." in name), name


def row_of(length: int) -> ActorRow:
    return demonstration(Row(tuple(range(length)), (False, *[True] * (length - 1))))


def test_states_below_are_kept_for_the_rows_that_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def states_of(ids: torch.Tensor) -> torch.Tensor:
        asked.append(len(ids))
        return ids[..., None].float() * torch.ones(4)

    known = KnownBelow(states_of, max_tokens=100)
    short, long = row_of(3), row_of(5)
    first, second, again = known([short, long, row_of(3)])
    assert asked == [2]
    assert first.below is not None and second.below is not None and again.below is not None
    assert first.below.tolist() == again.below.tolist() == [[i] * 4 for i in range(3)]
    assert second.below.shape == (5, 4)
    known.keep([long])
    known([short, long])
    assert asked == [2, 1]
    monkeypatch.setattr(lower, "KEPT", 3 * 4 * 4)  # float32 states of the short row
    known.keep([short, long])
    known([short, long])
    assert asked == [2, 1, 1]


def test_states_below_are_padded_with_their_rows() -> None:
    rows = [row_of(3), row_of(5)]
    assert collate(rows).below is None
    known = [replace(r, below=torch.ones(len(r.ids), 4)) for r in rows]
    below = collate(known).below
    assert below is not None and below.shape == (2, 5, 4)
    assert below[0, 3:].abs().sum() == 0 and below[0, :3].min() == 1
    assert collate([known[0], rows[1]]).below is None
