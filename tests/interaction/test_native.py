"""Sampling: what is recorded is what the model says, whatever stands beside it in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.common.chat import encode_prompt, stop_ids
from stages.common.models import load_actor, load_tokenizer
from stages.common.seeding import keyed_generator
from stages.interaction import llama
from stages.interaction.actions import parse_action
from stages.interaction.batch import Asked, Batch, common_beginning
from stages.interaction.generation import Generation, Request
from stages.interaction.native import Job, NativePolicy, decode
from stages.interaction.network import AnyNetwork, network_kind
from stages.interaction.rollout import collect
from stages.interaction.sampling import pick
from stages.interaction.states import build_state
from stages.interaction.trajectory import Action, Trajectory, Turn
from tests.interaction.toys import BoxEnvironment, task
from tests.tiny_models import tiny_llama, tiny_qwen3

TEMPERATURE = 0.7


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3], ids=["llama", "qwen3"])
def actor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model, tokenizer) of a random model with its own template."""
    folder = tmp_path_factory.mktemp("actor")
    request.param(folder)
    return load_actor(folder), load_tokenizer(folder)


def requests_of(count: int, *, first: int = 0) -> list[Request]:
    """Questions of very different length."""
    return [
        Request(
            [{"role": "user", "content": "orders " * (1 + 7 * (i % 5)) + str(i)}], (), (0, 0, i, 0)
        )
        for i in range(first, first + count)
    ]


def oracle(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """Log-probs of ``ids`` after ``prompt`` by one plain, unpadded forward in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0].double() / TEMPERATURE
    places = torch.arange(len(prompt) - 1, len(prompt) + len(ids) - 1)
    return (
        logits[places].gather(1, torch.tensor(ids)[:, None]) - logits[places].logsumexp(1, True)
    )[:, 0]


def play(actor: Any, policy: Any, *, tasks: int = 4, **options: Any) -> list[Trajectory]:
    _, tokenizer = actor
    return collect(
        [task(number) for number in range(tasks)],
        make_environment=BoxEnvironment,
        make_state=lambda: build_state({}, lambda m: len(encode_prompt(tokenizer, m))),
        policy=policy,
        key=(3, 1),
        **options,
    )


def test_logprobs_are_those_of_a_plain_forward_in_a_ragged_batch(actor: Any) -> None:
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=24)
    replies = policy.generate(requests_of(9))
    assert len({len(reply.prompt_ids) for reply in replies}) > 3
    assert len({len(reply.ids) for reply in replies}) > 1 or not any(r.stopped for r in replies)
    for reply in replies:
        expected = oracle(model, reply.prompt_ids, reply.ids)
        torch.testing.assert_close(
            torch.tensor(reply.logprobs).double(), expected, atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_gives_the_behaviour_logprobs(actor: Any, side: str) -> None:
    """What training computes over a padded batch, in float32, is what was recorded (1e-4)."""
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=24)
    rows = [turn for episode in play(actor, policy) for turn in episode.turns]
    whole = [[*turn.prompt_ids, *turn.action_ids] for turn in rows]
    width = max(map(len, whole))
    ids = torch.zeros(len(whole), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(whole):
        place = slice(width - len(tokens), None) if side == "left" else slice(len(tokens))
        ids[row, place], mask[row, place] = torch.tensor(tokens), 1
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(ids, attention_mask=mask, position_ids=positions).logits / TEMPERATURE
    logp = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    for row, turn in enumerate(rows):
        start = (width - len(whole[row]) if side == "left" else 0) + len(turn.prompt_ids) - 1
        found = logp[row, start : start + len(turn.action_ids)]
        torch.testing.assert_close(found, torch.tensor(turn.logprobs), atol=1e-4, rtol=0)


def test_a_prompt_that_would_pass_the_budget_is_encoded_afresh(actor: Any) -> None:
    """The same words sampled letter by letter are more tokens than the state counted."""
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, max_new_tokens=2)
    shown = [{"role": "user", "content": "how many orders?"}]
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "answer"]
    said = {"role": "assistant", "content": "answer"}
    messages = [*shown, said, {"role": "user", "content": "done"}]
    before = Turn(
        0,
        tuple(shown),
        Action("answer"),
        prompt_ids=tuple(encode_prompt(tokenizer, shown)),
        action_ids=(*letters, tokenizer.eos_token_id),
    )
    budget = len(encode_prompt(tokenizer, messages))
    for most in (0, budget + len(letters), budget):
        [reply] = policy.generate([Request(messages, (), (0, 1), before, most)])
        as_sampled = list(reply.prompt_ids[len(before.prompt_ids) :][: len(letters)]) == letters
        assert as_sampled == (most != budget)
        assert len(reply.prompt_ids) <= (most or 10**6)


def test_training_ids_are_the_sampled_ones(actor: Any) -> None:
    """Each prompt begins with all that was shown and sampled before; nothing is re-tokenised."""
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=24)
    sampled: list[Generation] = []

    class Noting:
        def generate(self, asked: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
            made = policy.generate(asked, greedy=greedy)
            sampled.extend(made)
            return made

    episodes = play(actor, Noting(), tasks=2, parallel=1)
    turns = [turn for episode in episodes for turn in episode.turns]
    recorded = [(turn.prompt_ids, turn.action_ids, turn.logprobs) for turn in turns]
    assert recorded == [(tuple(g.prompt_ids), tuple(g.ids), tuple(g.logprobs)) for g in sampled]
    assert [turn.action.text for turn in turns] == [g.text for g in sampled]
    extended = total = 0
    for episode in episodes:
        for before, after in zip(episode.turns, episode.turns[1:], strict=False):
            known = (*before.prompt_ids, *before.action_ids)
            extended += after.prompt_ids[: len(known)] == known
            total += 1
    assert total and extended >= 0.5 * total, "most prompts extend the last (templates may trim)"


class InRounds:
    """A policy without sessions of its own: every turn is one call of ``generate``."""

    def __init__(self, policy: NativePolicy) -> None:
        self.policy = policy

    def generate(self, asked: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        return self.policy.generate(asked, greedy=greedy)


def assert_same(found: Sequence[Trajectory], reference: Sequence[Trajectory]) -> None:
    """The same episodes, their log-probs up to rounding."""

    def without_logprobs(episode: Trajectory) -> Trajectory:
        return episode.with_turns([replace(turn, logprobs=()) for turn in episode.turns])

    assert list(map(without_logprobs, found)) == list(map(without_logprobs, reference))
    for one, other in zip(found, reference, strict=True):
        for turn, twin in zip(one.turns, other.turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, twin.logprobs, atol=1e-5)


@pytest.fixture
def stopping(actor: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same, but every fifth token or so ends a reply, so that replies differ in length."""
    model, _ = actor
    often = list(range(5, model.config.vocab_size, 5))
    monkeypatch.setattr(model.generation_config, "eos_token_id", often)
    return actor


def test_the_same_keys_give_the_same_episode_in_any_company(actor: Any, stopping: Any) -> None:
    """One at a time, a few, or all at once; batched continuously or turn by turn."""
    model, tokenizer = stopping

    def episodes(parallel: int, wrap: Any = lambda policy: policy, **how: Any) -> Any:
        policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=10, **how)
        return play(actor, wrap(policy), tasks=9, parallel=parallel, max_turns=3)

    reference = episodes(1, InRounds, reuse=False)
    assert len({len(turn.action_ids) for e in reference for turn in e.turns}) > 4
    for parallel in (1, 2, 3, 5, 64):
        assert_same(episodes(parallel), reference)
    for reuse in (True, False):
        assert_same(episodes(64, InRounds, reuse=reuse), reference)


def test_an_episode_that_ends_makes_room_for_the_next_at_once(stopping: Any) -> None:
    """Rows enter while others are in the middle of a reply; memory is that of those who play."""
    model, tokenizer = stopping
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=24)
    session: Any = policy.session()
    slots, entered, real = session._batch._slots, [], session._batch.begin

    def begin(seats: Any, asked: Any) -> None:
        entered.append((len(seats), session._batch.going))
        real(seats, asked)

    session._batch.begin = begin
    policy.session = lambda **_: session  # type: ignore[method-assign]
    episodes = play(stopping, policy, tasks=24, parallel=8, max_turns=3)
    assert len(episodes) == 24
    assert entered[0] == (8, 0)
    assert any(going for _, going in entered), "nobody waits for the slowest"
    assert all(rows + going <= 8 for rows, going in entered)
    assert slots.count == 8


def computed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens of each row every forward over prompts computes."""
    seen: list[list[int]] = []
    for kind in (llama.Llama, AnyNetwork):

        def extend(self: Any, rows: Any, tokens: Any, real: Any = kind.extend) -> Any:
            seen.append([len(row) for row in tokens])
            return real(self, rows, tokens)

        monkeypatch.setattr(kind, "extend", extend)
    return seen


def test_what_first_prompts_begin_with_is_computed_once(
    actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = actor
    rules = {"role": "user", "content": "You are an analyst. The answer is done still to do: "}
    endings = ("orders", "tables and units", "x")
    states = [[rules | {"content": rules["content"] + end}] for end in endings]
    requests = [Request(state, (), (0, 0, k, 0)) for k, state in enumerate(states)]
    alone = NativePolicy(model, tokenizer, max_new_tokens=6, reuse=False)
    plain = [alone.generate([request])[0] for request in requests]
    lengths = [len(reply.prompt_ids) for reply in plain]
    shared = len(common_beginning([reply.prompt_ids for reply in plain]))
    policy = NativePolicy(model, tokenizer, max_new_tokens=6, reuse=True)
    policy.generate(requests[:1])  # what makes a network may try it out
    policy = policy.at(1.0)
    seen = computed(monkeypatch)
    replies = policy.generate(requests)
    assert seen == [[shared], [n - shared for n in lengths]]
    for one, reply in zip(plain, replies, strict=True):
        assert reply.ids == one.ids
        np.testing.assert_allclose(reply.logprobs, one.logprobs, atol=1e-5)
    seen.clear()
    others = [replace(request, key=(0, 0, 7 + k, 0)) for k, request in enumerate(requests)]
    policy.generate(others)  # the same weights: what was read is known by now
    assert seen == [[1, 1, 1]]
    with torch.no_grad():
        next(model.parameters()).mul_(1.0)  # other weights, for all it knows
    seen.clear()
    policy.generate(requests)
    assert seen == [[shared], [n - shared for n in lengths]]


def test_a_follow_up_reads_only_what_is_new(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last sampled token was never fed; of a prompt that was cut, what is in common is kept."""
    model, _ = actor
    kind = network_kind(model)
    assert kind is not None
    batch = Batch(kind(model), stops=(), temperature=TEMPERATURE, limit=5, greedy=True)
    seats = [batch.seat(), batch.seat()]
    prompts = [[5, 6, 7, 8], [9, 10]]
    seen = computed(monkeypatch)

    def replies(prompts: list[list[int]]) -> list[list[int]]:
        batch.begin(seats, [Asked(prompt, 3 + k, None) for k, prompt in enumerate(prompts)])
        batch.run(2)
        found = [batch.reply(seat) for seat in seats]
        for prompt, row in zip(prompts, found, strict=True):
            np.testing.assert_allclose(row.logprobs, oracle(model, prompt, row.ids), atol=1e-5)
        return [row.ids for row in found]

    first = replies(prompts)
    assert seen.pop() == [4, 2]
    replies([[*prompts[0], *first[0], 11, 12], [*prompts[1], *first[1], 13]])
    assert seen.pop() == [3, 2]
    replies([[5, 6, 99, 8, 11], [9, 10, *first[1], 13, 14]])
    assert seen.pop() == [3, 1]
    replies([[5, 6, 99], [9]])
    assert seen.pop() == [1, 1]
    replies([[40, 41, 42, 43, 44], [45]])
    assert seen.pop() == [5, 1]


@pytest.mark.parametrize("kind", [llama.Llama, AnyNetwork])
def test_rows_may_enter_leave_and_change_places_at_any_time(actor: Any, kind: Any) -> None:
    """Random comings and goings in one batch; every reply is what a plain forward says."""
    model, _ = actor
    assert network_kind(model) is llama.Llama
    rng = keyed_generator(11)
    batch = Batch(kind(model), stops=(3, 4, 5, 6), temperature=TEMPERATURE, limit=9)
    open_: dict[Any, tuple[list[int], np.ndarray]] = {}
    rows: list[tuple[list[int], np.ndarray, Any]] = []
    idle: list[Any] = []
    for _ in range(25):
        fresh = [batch.seat() for _ in range(int(rng.integers(0, 4)))]
        again = [idle.pop() for _ in range(min(len(idle), int(rng.integers(0, 3))))]
        begun = []
        for seat in fresh + again:
            prompt = rng.integers(7, 50, int(rng.integers(1, 30))).tolist()
            if rows and rng.random() < 0.5:  # goes on with what some row has said
                before, _, said = rows[int(rng.integers(len(rows)))]
                prompt = [*before, *said.ids][: int(rng.integers(2, 40))] + prompt[:3]
            begun.append((prompt, rng.random(9)))
            open_[seat] = begun[-1]
        if begun:
            asked = [Asked(prompt, 1 + len(prompt) % 9, draws) for prompt, draws in begun]
            batch.begin(fresh + again, asked)
        batch.run(int(rng.integers(0, 3)))
        for seat in [seat for seat in open_ if batch.ended(seat)]:
            rows.append((*open_.pop(seat), batch.reply(seat)))
            if rng.random() < 0.4:
                batch.leave(seat)
            else:
                idle.append(seat)
    assert len(rows) > 20
    for prompt, draws, row in rows:
        job = Job([prompt], [1 + len(prompt) % 9], draws[None], (3, 4, 5, 6), TEMPERATURE)
        [alone] = decode(model, job)
        assert row.ids == alone.ids
        np.testing.assert_allclose(row.logprobs, oracle(model, prompt, row.ids), atol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([[1, 2, 3, 4], [1, 2, 3, 5]], [1, 2, 3]),
        ([[1, 2, 3], [1, 2, 3]], [1, 2]),  # a last token is always left to compute
        ([[1, 2], [1, 2, 3, 4]], [1]),
        ([[4, 1], [5, 1], [4, 1]], []),
    ],
)
def test_a_common_beginning_is_short_of_every_last_token(
    prompts: list[list[int]], shared: list[int]
) -> None:
    assert common_beginning(prompts) == shared


def test_another_key_gives_another_reply(actor: Any) -> None:
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, max_new_tokens=16)
    [request] = requests_of(1)
    keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    replies = policy.generate([replace(request, key=key) for key in keys])
    assert len({tuple(reply.ids) for reply in replies}) == len(keys)


def test_greedy_takes_the_likeliest_and_needs_no_key(actor: Any) -> None:
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=12)
    [request, *_] = requests_of(3)
    [reply, twin] = policy.generate([request, replace(request, key=(9, 9, 9, 9))], greedy=True)
    assert reply.ids == twin.ids
    ids = list(reply.prompt_ids)
    for token, logprob in zip(reply.ids, reply.logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        assert int(logits.argmax()) == token
        assert math.isclose((logits / TEMPERATURE).log_softmax(-1)[token], logprob, abs_tol=1e-5)
        ids.append(token)


def test_generation_config_does_not_bend_the_distribution(actor: Any) -> None:
    model, tokenizer = actor
    before = NativePolicy(model, tokenizer, max_new_tokens=12).generate(requests_of(4))
    settings = {"top_k": 1, "top_p": 0.1, "repetition_penalty": 5.0, "temperature": 0.1}
    kept = {name: getattr(model.generation_config, name, None) for name in settings}
    try:
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        after = NativePolicy(model, tokenizer, max_new_tokens=12).generate(requests_of(4))
    finally:
        for name, value in kept.items():
            setattr(model.generation_config, name, value)
    assert after == before


class Fixed(torch.nn.Module):
    """Stands in for the output layer: always the same logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*hidden.shape[:-1], -1)


def with_logits(model: Any, logits: torch.Tensor, run: Callable[[], Any]) -> Any:
    """Run with a fixed distribution in place of the model's own."""
    head = model.lm_head
    model.lm_head = Fixed(logits)
    try:
        return run()
    finally:
        model.lm_head = head


def test_any_stop_token_ends_a_row_and_is_recorded(actor: Any) -> None:
    model, tokenizer = actor
    stops = stop_ids(tokenizer, model.generation_config)
    logits = torch.full((model.config.vocab_size,), -9.0)
    word = tokenizer("orders", add_special_tokens=False)["input_ids"][0]
    logits[word], logits[stops[0]] = 2.0, 1.0
    policy = NativePolicy(model, tokenizer, max_new_tokens=30)
    replies = with_logits(model, logits, lambda: policy.generate(requests_of(40)))
    lengths = [len(reply.ids) for reply in replies]
    assert len(set(lengths)) > 4, "rows end at different times"
    for reply in replies:
        assert reply.stopped == (reply.ids[-1] in stops)
        assert not set(reply.ids[:-1]) & set(stops)
        assert reply.stopped or len(reply.ids) == 30
        assert reply.text == tokenizer.decode([i for i in reply.ids if i not in stops])
    # P(stop) = e/(e+e²): the mean of a geometric law, here within 4 standard errors.
    assert abs(np.mean(lengths) - (1 + math.e)) < 4 * math.sqrt(math.e * (1 + math.e) / 40)


def test_finished_rows_leave_the_batch(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = actor
    stops = stop_ids(tokenizer, model.generation_config)
    logits = torch.full((model.config.vocab_size,), -9.0)
    logits[5], logits[stops[0]] = 1.0, 1.0
    policy = NativePolicy(model, tokenizer, max_new_tokens=50)
    sizes: list[int] = []
    for kind in (llama.Llama, AnyNetwork):

        def step(self: Any, ids: Any, real: Any = kind.step) -> Any:
            sizes.append(len(ids))
            return real(self, ids)

        monkeypatch.setattr(kind, "step", step)
    policy.generate(requests_of(1))
    sizes.clear()
    replies = with_logits(model, logits, lambda: policy.generate(requests_of(32)))
    lengths = [len(reply.ids) for reply in replies]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] <= 32
    assert len(sizes) == max(lengths) - 1, "the first token comes with the prompt"
    assert sum(sizes) < 1.5 * sum(lengths)


def test_sampling_follows_the_distribution_and_the_draw() -> None:
    """Inverse CDF, worked by hand; then frequencies."""
    logits = torch.log(torch.tensor([[0.2, 0.0, 0.5, 0.3]]))
    for draw, token in ((0.0, 0), (0.19, 0), (0.21, 2), (0.69, 2), (0.71, 3), (1 - 2**-53, 3)):
        chosen, logp = pick(logits, 1.0, torch.tensor([draw], dtype=torch.float64))
        assert int(chosen) == token
        assert math.isclose(math.exp(float(logp)), [0.2, 0, 0.5, 0.3][token], rel_tol=1e-6)
    never = torch.log(torch.tensor([[0.0, 1.0]]))
    assert int(pick(never, 1.0, torch.zeros(1, dtype=torch.float64))[0]) == 1
    draws = torch.as_tensor(keyed_generator(1).random(20_000))
    chosen, _ = pick((logits + 3.0).expand(20_000, 4), 2.0, draws)
    flat = np.sqrt([0.2, 0.0, 0.5, 0.3])
    counts = np.bincount(chosen.numpy(), minlength=4) / 20_000
    np.testing.assert_allclose(counts, flat / flat.sum(), atol=0.015)


def test_a_prompt_that_fills_the_context_is_reported_and_others_go_on(tmp_path: Path) -> None:
    tiny_llama(tmp_path, max_position_embeddings=64)
    model, tokenizer = load_actor(tmp_path), load_tokenizer(tmp_path)
    policy = NativePolicy(model, tokenizer, max_new_tokens=500)
    short, long = requests_of(2)
    long = replace(long, messages=[{"role": "user", "content": "orders " * 80}])
    for reply, other in (policy.generate([short, long]), policy.generate([long, short])[::-1]):
        assert other.overflow and not other.ids
        assert not reply.overflow and len(reply.prompt_ids) + len(reply.ids) <= 64
    assert [reply.overflow for reply in policy.generate([long, long])] == [True, True]


def test_changed_weights_are_never_mixed_with_an_old_cache(actor: Any) -> None:
    model, tokenizer = actor
    policy = NativePolicy(model, tokenizer, temperature=TEMPERATURE, max_new_tokens=12)
    norm = model.model.norm.weight
    layer = model.model.layers[0].self_attn.v_proj.weight

    class Shifting:
        """Changes the actor between two turns of an episode (nobody should)."""

        def generate(self, asked: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
            if asked[0].key[-1] == 1:
                with torch.no_grad():
                    layer.mul_(1.5)
                    norm.mul_(0.5)
            return policy.generate(asked, greedy=greedy)

    try:
        episodes = play(actor, Shifting(), max_turns=2)
        for episode in episodes:
            turn = episode.turns[1]
            expected = oracle(model, turn.prompt_ids, turn.action_ids)
            found = torch.tensor(turn.logprobs).double()
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    finally:
        with torch.no_grad():
            layer.div_(1.5)
            norm.div_(0.5)


def test_the_policy_leaves_the_models_mode_as_it_was(actor: Any) -> None:
    model, tokenizer = actor
    for mode in (True, False):
        model.train(mode)
        NativePolicy(model, tokenizer, max_new_tokens=2).generate(requests_of(1))
        assert model.training == mode
    model.eval()


def test_markers_in_content_never_become_control_tokens(actor: Any) -> None:
    """A database that says ``<|im_end|>`` must not end the actor's message for it."""
    _, tokenizer = actor
    controls = set(tokenizer.all_special_ids)
    markers = [tokenizer.decode([control]) for control in sorted(controls)]

    def shown(text: str) -> list[int]:
        messages = [
            {"role": "user", "content": f"how many? {text}"},
            {"role": "assistant", "content": f'{{"name": "look"}} {text}'},
            {"role": "tool", "content": f"12 {text} rows"},
        ]
        return [i for i in encode_prompt(tokenizer, messages) if i in controls]

    harmless = shown("orders")
    for marker in markers:
        assert shown(marker) == harmless, marker
        assert shown(f"orders{marker}\nsystem") == harmless, marker
    assert parse_action(f'{{"name": "look", "arguments": {{"box": "{markers[0]}"}}}}').calls


def architectures() -> dict[str, Any]:
    """Small random models of other families: positions, windows and heads of many kinds."""
    import transformers as t

    shape = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = shape | {"intermediate_size": 48, "num_key_value_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    window = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    return {
        "gpt2": t.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        "gpt_neox": t.GPTNeoXConfig(**shape, intermediate_size=48),
        "mistral": t.MistralConfig(**more, sliding_window=4),
        "gemma3": t.Gemma3TextConfig(**more, **special, head_dim=8, **window),
        "bloom": t.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
        "qwen2": t.Qwen2Config(**more),
        "mamba": t.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=8),
    }


WAYS = {
    "gpt2": AnyNetwork,
    "gpt_neox": AnyNetwork,
    "mistral": AnyNetwork,  # its window is no matter of a plain causal mask
    "gemma3": AnyNetwork,
    "bloom": None,  # takes no positions
    "qwen2": llama.Llama,
    "mamba": None,  # keeps a state, no keys
}
"""How each is computed."""


@pytest.mark.parametrize("family", sorted(architectures()))
def test_other_families_sample_what_they_say(family: str) -> None:
    """Ragged, first turn and follow-up, whichever way the family is computed."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(architectures()[family]).eval()
    draw = keyed_generator(2)
    prompts = [draw.integers(3, 96, size).tolist() for size in (3, 11, 6)]
    kind = network_kind(model)
    assert kind is WAYS[family]
    batch = None if kind is None else Batch(kind(model), stops=(), temperature=TEMPERATURE, limit=9)
    seats = [] if batch is None else [batch.seat() for _ in prompts]
    for _ in range(2):
        draws = draw.random((3, 9))
        asked = [Asked(*row) for row in zip(prompts, (5, 9, 7), draws, strict=True)]
        if batch is None:
            rows = decode(model, Job(prompts, (5, 9, 7), draws, (), TEMPERATURE))
        else:
            batch.begin(seats, asked)
            batch.run(len(asked))
            rows = [batch.reply(seat) for seat in seats]
        for prompt, row in zip(prompts, rows, strict=True):
            found = torch.tensor(row.logprobs).double()
            torch.testing.assert_close(found, oracle(model, prompt, row.ids), atol=1e-5, rtol=0)
        prompts = [[*p, *row.ids, 7, 8, 9][:40] for p, row in zip(prompts, rows, strict=True)]
