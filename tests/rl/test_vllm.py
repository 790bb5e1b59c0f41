"""vLLM as engine: TRL's real class around a double of vLLM. No test here needs or has a GPU."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from stages.common.adapters import attach, merged_copy
from stages.common.chat import encode_prompt, stop_ids
from stages.common.errors import RunError, UsageError
from stages.common.models import load_actor, load_tokenizer
from stages.common.ranks import Ranks
from stages.interaction.generation import Policy, Request
from stages.recipe.generation import GenerationSection, VllmSection
from stages.recipe.model import LoraSection
from stages.recipe.models import Recipe
from stages.rl import vllm_adapter
from stages.rl.pool import read_trajectories
from stages.rl.vllm_adapter import VllmEngine, VllmPolicy, VllmSampler, check_vllm, start_engine
from tests.adapted import World
from tests.rl.test_run import BASE, RL, merged
from tests.rl.vllm_double import SECTIONS, Vllm, beneath_trl
from tests.tiny_models import tiny_llama

TEMPERATURE, CONTEXT = 0.7, 60


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An SFT actor of whole weights."""
    made = World(tmp_path_factory.mktemp("vllm"))
    made.aac("sft", "sft")
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random actor."""
    return tiny_llama(tmp_path_factory.mktemp("actor"))


class Played:
    """An actor, TRL's class around it, and the double beneath."""

    def __init__(self, folder: Path, started: list[Vllm], mode: str, actor: Any = None) -> None:
        from accelerate import Accelerator

        self.actor = load_actor(folder) if actor is None else actor
        self.tokenizer = load_tokenizer(folder)
        self.stops = stop_ids(self.tokenizer, self.actor.generation_config)
        self.trl = start_engine(
            SECTIONS[mode],
            self.actor,
            accelerator=Accelerator(),
            tokenizer=self.tokenizer,
            length=CONTEXT,
        )
        self.vllm = started[-1]
        self.engine = VllmEngine(self.trl, self.actor, self.stops)
        self.policy = VllmPolicy(self.engine, self.tokenizer, context=CONTEXT, max_new_tokens=12)


@pytest.fixture(params=["colocate", "server"])
def played(request: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Both ways TRL has to reach vLLM."""
    return Played(folder, beneath_trl(monkeypatch), request.param)


def requests_of(lengths: list[int]) -> list[Request]:
    return [
        Request([{"role": "user", "content": "orders " * n + str(i)}], (), (0, 0, i, 0))
        for i, n in enumerate(lengths)
    ]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Equal weights, in the other's type."""
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(p.to(q.dtype), q) for (a, p), (b, q) in pairs)


def test_trl_class_has_the_names_the_adapter_uses() -> None:
    """Against the installed TRL: if this fails, ``vllm_adapter`` is the file to change."""
    from trl.generation.vllm_generation import VLLMGeneration

    takes = inspect.signature(VLLMGeneration.__init__).parameters
    ours = inspect.getsource(start_engine).split("VLLMGeneration(")[1].split("\n        )")[0]
    passed = [line.split("=")[0].strip() for line in ours.strip().splitlines()]
    assert len(passed) == 13 and set(passed) <= set(takes)
    assert takes["enable_sleep_mode"].default is False
    generate = inspect.signature(VLLMGeneration.generate).parameters
    assert list(generate)[1:4] == ["prompts", "images", "num_generations"]
    assert list(inspect.signature(VLLMGeneration.sync_weights).parameters) == ["self"]
    # At the sampling temperature, which vLLM's log-probs by default are not.
    assert 'logprobs_mode="processed_logprobs"' in inspect.getsource(VLLMGeneration._init_vllm)


def test_replies_are_token_for_token_what_was_drawn(played: Played) -> None:
    assert isinstance(played.policy, Policy)
    asked = requests_of([1, 9, 3, 17, 5])
    replies = played.policy.at(TEMPERATURE).generate(asked)
    drawn = {tuple(prompt): ids for prompt, ids in played.vllm.drawn}
    for request, reply in zip(asked, replies, strict=True):
        prompt = encode_prompt(played.tokenizer, request.messages)
        assert reply.prompt_ids == prompt and reply.ids == drawn[tuple(prompt)]
        whole = torch.tensor([[*prompt, *reply.ids]])
        logits = played.vllm.model(whole).logits[0, len(prompt) - 1 : -1].float() / TEMPERATURE
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(reply.logprobs), wanted, atol=0.03)  # bfloat16
        assert reply.stopped == (reply.ids[-1] in played.stops)
        bare = reply.ids[:-1] if reply.stopped else reply.ids
        assert reply.text == played.tokenizer.decode(bare, skip_special_tokens=True)
    assert len({reply.stopped for reply in played.policy.generate(requests_of([2] * 40))}) == 2


def test_nothing_but_the_temperature_shapes_what_is_sampled(played: Played) -> None:
    played.policy.at(TEMPERATURE).generate(requests_of([1]))
    played.policy.generate(requests_of([1]), greedy=True)
    hot, greedy = played.vllm.settings
    assert hot == {
        "n": 1,
        "temperature": TEMPERATURE,
        "repetition_penalty": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "logprobs": 0,
        "max_tokens": 12,
        "stop_token_ids": list(played.stops),
        "ignore_eos": True,
    }
    assert greedy == hot | {"temperature": 0.0}


def test_limits_are_each_rows_own_and_the_order_stays(played: Played) -> None:
    asked = requests_of([1, 40, 2, 90, 42, 3])
    replies = played.policy.generate(asked)
    prompts = [encode_prompt(played.tokenizer, r.messages) for r in asked]
    assert [list(reply.prompt_ids) for reply in replies] == prompts
    rooms = [CONTEXT - len(prompt) for prompt in prompts]
    assert min(rooms) <= 0 < sorted(rooms)[1] < 12 < max(rooms)
    for reply, room in zip(replies, rooms, strict=True):
        assert reply.overflow == (room <= 0)
        assert len(reply.ids) <= max(min(room, 12), 0)
        assert reply.stopped or len(reply.ids) == min(room, 12)
    assert {s["max_tokens"] for s in played.vllm.settings} == {min(r, 12) for r in rooms if r > 0}


def test_weights_follow_the_actor_once_per_version(played: Played) -> None:
    sampler = VllmSampler(played.engine, played.policy)
    with torch.no_grad():
        played.actor.lm_head.weight += 0.25
    assert not same(played.actor, played.vllm.model)
    sampler.policy(0)
    assert same(played.actor, played.vllm.model) and played.vllm.synchronised == 1
    with torch.no_grad():
        played.actor.lm_head.weight += 0.25
    sampler.policy(0)
    assert not same(played.actor, played.vllm.model) and played.vllm.synchronised == 1
    sampler.policy(1)
    assert same(played.actor, played.vllm.model) and played.vllm.synchronised == 2


def test_adapters_go_over_merged_and_leave_the_base_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = attach(load_actor(folder), LoraSection(rank=2), base=folder)
    for name, parameter in actor.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    before = {name: parameter.clone() for name, parameter in actor.named_parameters()}
    played = Played(folder, beneath_trl(monkeypatch), "colocate", actor)
    plain = load_actor(folder)
    assert same(plain, played.vllm.model)
    played.engine.synchronise()
    assert same(merged_copy(actor), played.vllm.model) and not same(plain, played.vllm.model)
    after = dict(actor.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


class Together(Ranks):
    """Threads in place of processes."""

    def everyone(self, mine: Any) -> list[Any]:
        seats[self.rank] = mine
        barrier.wait(5)
        found = list(seats)
        barrier.wait(5)
        return found


seats: list[Any] = [None, None]
barrier = threading.Barrier(2)


def test_processes_that_ask_unevenly_call_together() -> None:
    """TRL's server mode hands each process a slice of its own number of rows, drawn with the main
    process's parameters."""

    def generate(rank: int, trl: Any, prompts: list[list[int]]) -> Any:
        shares = Together(rank, 2).everyone(len(prompts))
        main = Together(rank, 2).everyone((trl.temperature, trl.max_completion_length))[0]
        assert shares[0] == shares[1] > 0
        ids = [prompt[:1] * main[1] for prompt in prompts]
        logprobs = [[[main[0]]] * len(row) for row in ids]
        return prompts, ids, logprobs, [[[t] for t in row] for row in ids]

    def play(rank: int) -> None:
        trl = SimpleNamespace(mode="server", tensor_parallel_size=1)
        trl.generate = lambda prompts, images, num_generations: generate(rank, trl, prompts)
        engine = VllmEngine(trl, None, (0,), Together(rank, 2))
        with engine.in_step():
            for temperature, rows in asked[rank]:
                prompts, limits = [[10 + i] for i in range(len(rows))], rows
                for i, one in enumerate(engine.sample(prompts, limits, temperature)):
                    right[rank] += one.ids == [10 + i] * limits[i]
                    right[rank] += set(one.logprobs) == {temperature}

    asked = {0: [(1.0, [3, 2, 3])], 1: [(1.0, [4]), (0.5, [1, 3]), (0.7, [2])]}
    right = [0, 0]
    threads = [threading.Thread(target=play, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert right == [6, 8]


def test_what_does_not_fit_what_was_asked_is_no_reply(played: Played) -> None:
    real = played.trl.generate
    (prompt,) = prompts = [[5, 6, 7]]

    def answer(**changed: Any) -> None:
        def generate(**words: Any) -> Any:
            seen, ids, logprobs, places = real(**words)
            found = {"seen": seen, "ids": ids, "logprobs": logprobs, "places": places}
            return tuple((found | changed).values())

        played.trl.generate = generate

    for changed, said in (
        ({"seen": [prompt[1:]]}, "other prompts"),
        ({"ids": [[]], "logprobs": [[]], "places": [[]]}, "without a token"),
        ({"ids": [[9]], "logprobs": [[[-1.0]]], "places": [[[8]]]}, "no log-prob"),
        ({"ids": [[9]], "logprobs": [[[None]]], "places": [[[9]]]}, "no log-prob"),
    ):
        answer(**changed)
        with pytest.raises(RunError, match=said):
            played.engine.sample(prompts, [4], 1.0)


def test_a_run_samples_from_vllm_and_corrects_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = beneath_trl(monkeypatch)
    monkeypatch.setattr(vllm_adapter, "check_vllm", lambda *_: None)
    rows = world.rl(
        "rl",
        rl__generation__engine="vllm",
        rl__actor__temperature_final=0.5,
        evaluation__temperature=0.25,
        rl__forgetting__every=0,  # which asks greedily, too
    )
    (vllm,) = started
    assert vllm.synchronised == 3  # two iterations' actors, and the last for its evaluation
    assert [s["temperature"] for s in vllm.settings] == sorted(
        (s["temperature"] for s in vllm.settings), reverse=True
    )
    assert {s["temperature"] for s in vllm.settings} == {1.0, 0.5, 0.25}
    for row in rows:
        assert 1e-5 < row["sampling/logprob_gap"] < 0.1
        assert 0.9 < row["sampling/effective_size"] < 1
        # The ratio's two sides are one forward, however the sampler computes.
        assert row["time/weights_s"] > 0
    drawn = {(tuple(prompt), tuple(ids)) for prompt, ids in vllm.drawn}
    files = (world.root / "rl" / "trajectories").glob("*.jsonl")
    turns = [turn for file in files for e in read_trajectories(file) for turn in e.turns]
    assert turns and all((tuple(t.prompt_ids), tuple(t.action_ids)) in drawn for t in turns)
    plain = world.rl("native")
    assert "sampling/logprob_gap" not in plain[0] and "time/weights_s" not in plain[0]


def test_it_is_refused_where_it_cannot_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    here: dict[str, Any] = {"vllm": None}
    found = lambda name, *rest: here[name] if name in here else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", found)
    said = world.refused("rl", "--sft", world.root / "sft", rl__generation__engine="vllm")
    assert "needs the package vllm, which is not installed; pip install 'aac[vllm]'" in said
    here["vllm"] = object()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = world.refused("rl", "--sft", world.root / "sft", rl__generation__engine="vllm")
    assert "needs a GPU, and this machine shows none" in said
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    split = GenerationSection(engine="vllm", vllm=VllmSection(tensor_parallel=2))
    check_vllm(split, 4)
    with pytest.raises(UsageError, match="does not divide the 3 launched"):
        check_vllm(split, 3)


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from requests import ConnectionError
    from trl.generation.vllm_generation import VLLMGeneration

    def gone(self: Any, **words: Any) -> None:
        raise ConnectionError(f"no answer from {words['server_base_url']}")

    monkeypatch.setattr(VLLMGeneration, "__init__", gone)
    section = VllmSection(mode="server", host="gpu-7", port=9000)
    parts = {"accelerator": None, "tokenizer": None, "length": None}
    with pytest.raises(UsageError, match=r"gpu-7:9000, which does not answer.*http://gpu-7:9000"):
        start_engine(section, None, **parts)
    with pytest.raises(ConnectionError):
        start_engine(VllmSection(), None, **parts)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"engine": "native", "vllm": {"port": 9, "mode": "server"}}, "engine is native"),
        ({"engine": "vllm", "dtype": "float16"}, "vLLM chooses the type"),
        ({"engine": "vllm", "vllm": {"port": 9}}, "port = 9 is given, but with mode colocate"),
        (
            {"engine": "vllm", "vllm": {"mode": "server", "tensor_parallel": 2}},
            "tensor_parallel = 2 is given, but with mode server",
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused(section: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GenerationSection.model_validate(section)


def test_a_base_in_four_bits_cannot_go_over() -> None:
    model = {"actor": "x", "lora": {"quantize": "4bit"}}
    rl = merged(RL, {"generation": {"engine": "vllm"}})
    with pytest.raises(ValidationError, match="a base in 4bit cannot take up; set it to native"):
        Recipe.model_validate(BASE | {"model": model, "rl": rl})
