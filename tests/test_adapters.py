"""LoRA through the real commands: adapters alone are trained, kept, handed over and merged."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from typer.testing import CliRunner

from aacli.app import app
from stages.common.adapters import has_adapters, state_of
from stages.common.manifest import file_hashes, read_manifest, verify_parent
from stages.common.models import load_actor, load_reward_model, load_tokenizer, load_trained_actor
from stages.recipe.load import load_recipe
from tests.adapted import LORA, World, logits, rows, tensors


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """All three stages with adapters."""
    made = World(tmp_path_factory.mktemp("lora"), model={"lora": LORA})
    made.before = file_hashes(made.actor)
    sft = made.aac("sft", "sft")
    made.aac("train-reward", "reward", "--sft", sft)
    reward = ("--reward", made.root / "reward")
    made.rl("rl", *reward, rl__rewards__reward_model=0.5, rl__actor__learning_rate=0.01)
    return made


def adapted(world: World, folder: str, dtype: str = "float32") -> Any:
    """The folder's adapters over their base, not merged."""
    section = load_recipe(world.recipe, []).model
    tokenizer = load_tokenizer(world.actor)
    return load_trained_actor(world.root / folder, section, dtype=dtype, tokenizer=tokenizer)


def test_every_stage_hands_over_adapters_and_names_their_base(world: World) -> None:
    for stage in ("sft", "reward", "rl"):
        folder = world.root / stage
        names = set(tensors(folder))
        heads = {"base_model.model.score.weight"} if stage == "reward" else set()
        assert heads < names and all(".lora_" in n for n in names - heads)
        assert len(names - heads) == 2 * 7 * 2  # A and B, seven linear layers, two blocks
        manifest = verify_parent(folder, stage)
        assert manifest.base["path"] == str(world.actor.resolve()) and manifest.base["hash"]
        assert "LoRA adapters over" in (folder / "README.md").read_text()
    assert file_hashes(world.actor) == world.before


def test_only_adapted_layers_differ_from_the_base(world: World) -> None:
    base, trained = load_actor(world.actor).state_dict(), load_actor(world.root / "rl").state_dict()
    moved = {name for name in base if not torch.equal(base[name], trained[name])}
    assert moved == {name for name in base if name.endswith("_proj.weight")}
    assert any(
        not torch.equal(a, b)
        for a, b in zip(
            tensors(world.root / "rl").values(), tensors(world.root / "sft").values(), strict=True
        )
    )


def test_the_reference_is_the_sft_model_with_no_second_one_in_memory(world: World) -> None:
    from stages.rl.assembly import build_models
    from stages.rl.trainer import AsymmetricPPOTrainer
    from stages.rl.trl_adapter import ppo_config

    recipe, sft = load_recipe(world.recipe, []), world.root / "sft"
    ids = torch.arange(3, 40)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, :5] = False
    for start in (sft, world.actor):  # SFT's adapters in place of RL's, or none at all
        tokenizer = load_tokenizer(start)
        actor, reference = build_models(recipe, start, tokenizer)
        assert reference is None
        trainer = AsymmetricPPOTrainer(
            ppo_config(world.root / "scratch", iterations=1, learning_rate=0.1),
            actor=actor,
            reference=None,
            reward_model=None,
            tokenizer=tokenizer,
        )
        assert trainer.ref_model is None
        learning = set(state_of(actor))
        before = trainer.actor_logits(ids, mask)
        before.square().mean().backward()
        trainer.optimizer.step()
        wanted = logits(load_actor(start))[0, 4:-1]
        after, found = trainer.actor_logits(ids, mask), trainer.reference_logits(ids, mask)
        assert torch.allclose(before, wanted, atol=1e-5) and (after - wanted).abs().max() > 0.01
        assert torch.allclose(found.log_softmax(-1), wanted.log_softmax(-1), atol=1e-5)
        assert set(state_of(actor)) == learning  # looking at the reference froze nothing
    assert rows(world.root / "rl")[0]["actor/kl"] == pytest.approx(0, abs=1e-6)
    assert rows(world.root / "rl")[-1]["actor/kl"] > 1e-5


def test_every_consumer_takes_the_folder_of_adapters(world: World) -> None:
    folder = world.root / "rl"
    done = world.call("eval", "--actor", folder, "--json")
    assert done.exit_code == 0 and "success" in done.stdout, done.stderr
    plain = logits(AutoModelForCausalLM.from_pretrained(folder))  # transformers alone, with peft
    assert torch.allclose(plain, logits(load_actor(folder)), atol=1e-5)
    scorer = load_reward_model(world.root / "reward")
    kept = tensors(world.root / "reward")["base_model.model.score.weight"]
    assert torch.equal(scorer.score.weight, kept)
    assert any("reward/reward_model" in row for row in rows(folder))


def test_a_whole_model_can_go_on_from_adapters_and_adapters_from_a_whole_model(
    world: World,
) -> None:
    world.rl("full", model__lora=None, rl__iterations=1)
    assert not read_manifest(world.root / "full").base
    assert (world.root / "full/config.json").is_file()
    world.aac("sft", "sft-full", model__lora=None)
    over_full = world.rl("over-full", sft="sft-full", rl__iterations=1)
    assert over_full[0]["actor/kl"] == pytest.approx(0, abs=1e-6)
    base = read_manifest(world.root / "over-full").base["path"]
    assert base == str((world.root / "sft-full").resolve())
    advantage = {"rl__critic__kind": "advantage", "rl__critic__trunk": "actor"}
    trunk = world.rl("trunk", rl__iterations=1, **advantage)
    assert any(name.startswith("critic/") for name in trunk[-1])


def test_a_killed_run_resumes_to_the_same_adapters(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.rl.player import Player

    options = {"rl__checkpoint_every": 1, "rl__iterations": 3, "rl__keep": "best"}
    options |= {"rl__evaluate_every": 1}
    whole = world.rl("whole", **options)
    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 2:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(Player, "collect", killed)
    cut = world.root / "cut"
    words = ("--sft", world.root / "sft", "--output-dir", cut)
    assert world.call("rl", *words, **options).exit_code == 130
    monkeypatch.undo()
    saved = torch.load(cut / "checkpoints/checkpoint-2/state.pt", weights_only=True)
    assert all(".lora_" in name for name in saved["actor"]) and len(saved["actor"]) == 28
    resumed = world.rl("cut", **options)
    for name, tensor in tensors(world.root / "whole").items():
        assert torch.equal(tensors(cut)[name], tensor)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert {k: v for k, v in ours.items() if k[:5] != "time/"} == {
            k: v for k, v in theirs.items() if k[:5] != "time/"
        }


@pytest.mark.full
def test_a_killed_sft_resumes_to_the_same_adapters(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.common import trl_trainer

    options = {"sft__steps": 4, "sft__checkpoint_every": 2}
    whole = world.aac("sft", "sft-whole", **options)
    real = trl_trainer.RunLog.on_step_end

    def killed(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        real(self, args, state, control, **kwargs)
        if state.global_step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trl_trainer.RunLog, "on_step_end", killed)
    cut = world.root / "sft-cut"
    assert world.call("sft", "--output-dir", cut, **options).exit_code == 130
    monkeypatch.undo()
    assert not list(cut.glob("checkpoints/checkpoint-2/model*.safetensors"))
    world.aac("sft", "sft-cut", **options)
    for name, tensor in tensors(whole).items():
        assert torch.equal(tensors(cut)[name], tensor)


@pytest.mark.parametrize("stage", ["rl", "reward"])
def test_the_merged_folder_is_the_adapters_forward(world: World, stage: str) -> None:
    run, out = world.root / stage, world.root / f"{stage}-merged"
    done = CliRunner().invoke(app, ["export", str(run), "--json"])
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    assert made == {"folder": str(out), "base": str(world.actor.resolve()), "dtype": "float32"}
    if stage == "rl":
        model = AutoModelForCausalLM.from_pretrained(out)
        wanted = logits(adapted(world, stage))
        assert (logits(model) - wanted).abs().max() < 1e-5
        assert not has_adapters(model) and not verify_parent(out, stage).base
    else:
        model = AutoModelForSequenceClassification.from_pretrained(out)
        assert (logits(model) - logits(load_reward_model(run))).abs().max() < 1e-5
        assert read_manifest(out).score == read_manifest(run).score
    kept = file_hashes(out)
    again = CliRunner().invoke(app, ["export", str(run)])
    assert again.exit_code == 2 and "--overwrite" in again.stderr
    whole = CliRunner().invoke(app, ["export", str(out), "--output-dir", str(out / "x")])
    assert whole.exit_code == 2 and "no adapters to merge" in whole.stderr
    over = CliRunner().invoke(app, ["export", str(run), "--overwrite"])
    assert over.exit_code == 0 and file_hashes(out) == kept
    assert not list(world.root.glob(".*"))


def test_upper_layers_only(world: World) -> None:
    upper = world.aac("sft", "sft-upper", model__lora={**LORA, "layers": 1})
    assert {name.split(".layers.")[1][0] for name in tensors(upper)} == {"1"}
    few = world.aac("sft", "sft-few", model__lora={**LORA, "target_modules": ["q_proj", "v_proj"]})
    assert {name.split(".")[-3] for name in tensors(few)} == {"q_proj", "v_proj"}
    world.rl("rl-upper", rl__actor__lora_layers=1, rl__ppo__kl_loss="full")
    before, after = tensors(world.root / "sft"), tensors(world.root / "rl-upper")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(".layers.1." in name for name in moved)


def test_a_shared_value_head_learns_beside_the_adapters(world: World) -> None:
    critic = {"trunk": "shared", "view": "symmetric", "warm_up": {"max_iterations": 0}}
    found = world.rl("shared", rl__critic=critic)
    assert all("critic/loss" in row for row in found)
    names = set(tensors(world.root / "shared"))
    assert all(".lora_" in name for name in names)
    assert tensors(world.root / "shared/critic")["linear.weight"].abs().max() > 0


def test_what_does_not_fit_is_refused_in_one_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lora(**over: Any) -> dict[str, Any]:
        return {"model__lora": {**LORA, **over}}

    assert "bitsandbytes" in world.refused("sft", **lora(quantize="4bit"))
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: real("json" if name == "bitsandbytes" else name, *rest),
    )
    assert "needs an NVIDIA GPU" in world.refused("sft", **lora(quantize="4bit"))
    monkeypatch.undo()
    said = world.refused("sft", **lora(target_modules=["q_porj"]))
    assert "'q_porj'" in said and "q_proj" in said
    assert "output" not in said and "lm_head" not in said
    assert "the model has 2 layers" in world.refused("sft", **lora(layers=3))
    sft = ("--sft", world.root / "sft")
    assert "have rank 4" in world.refused("rl", *sft, **lora(rank=8))
    assert "have layers None" in world.refused("rl", *sft, **lora(layers=1))
    assert "the model has 2 layers" in world.refused("rl", *sft, rl__actor__lora_layers=3)
    assert "give model.lora" in world.refused(
        "rl", *sft, model__lora=None, rl__actor__lora_layers=1
    )
    both = lora(quantize="4bit") | {"rl__generation__dtype": "int8"}
    assert "set it to auto" in world.refused("rl", *sft, **both)


def test_a_base_that_changed_or_went_is_noticed(world: World, tmp_path: Path) -> None:
    other = World(tmp_path, model={"lora": LORA})
    sft = other.aac("sft", "sft")
    config = other.actor / "generation_config.json"
    config.write_text(config.read_text().replace("{", '{"top_k": 7,', 1))
    assert "has changed or is gone" in other.refused("rl", "--sft", sft)
    other.actor.rename(tmp_path / "moved")
    gone = other.call("eval", "--actor", sft)
    assert gone.exit_code == 2 and "adapter_config.json" in gone.stderr


def test_under_autocast_adapters_give_peft_s_own_numbers_without_its_casts(world: World) -> None:
    """peft makes their input float32, and autocast bfloat16 again."""
    model = adapted(world, "sft", dtype="bfloat16")
    layers = [m for m in model.modules() if hasattr(m, "cast_input_dtype_enabled")]
    ids = torch.arange(3, 19).view(2, 8)
    read: set[torch.dtype] = set()
    for layer in layers:
        layer.lora_A["default"].register_forward_pre_hook(lambda _, x: read.add(x[0].dtype))

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    ours = gradients()
    assert layers and torch.float32 not in read
    for layer in layers:
        layer.cast_input_dtype_enabled = True
    assert all(map(torch.equal, ours, gradients())) and any(g.any() for g in ours)
    assert torch.float32 in read


def test_a_bfloat16_base_under_adapters_also_runs_without_autocast(world: World) -> None:
    model = adapted(world, "sft", dtype="bfloat16")
    assert model(input_ids=torch.arange(3, 11)[None]).logits.isfinite().all()
