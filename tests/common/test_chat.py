"""Chat templates of different habits: roles, token concatenation, rows, stop tokens.

Each template is the oracle: what it renders of the whole dialogue must be what our
concatenated ids decode to.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common.chat import (
    adapt_roles,
    check_stop_token,
    dialogue_row,
    dialogue_rows,
    dialogue_turns,
    encode_action,
    encode_prompt,
    extend_prompt,
    recorded_turns,
    render,
    stop_ids,
    tool_role,
)
from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.common.rows import Row, action_spans
from stages.common.template import encode_text
from tests.tiny_models import tiny_llama, tiny_qwen3

CALL = '{"name": "list_tables", "arguments": {}}'
DIALOGUE = [
    {"role": "system", "content": "You are an analyst."},
    {"role": "user", "content": "How many orders are there?"},
    {"role": "assistant", "content": CALL},
    {"role": "tool", "content": "customers, orders"},
    {"role": "assistant", "content": '{"name": "answer", "arguments": {"value": 12}}'},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "12 again"},
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Refuses system, tool and repeated roles; pad equals eos; has generation markers."""
    return load_tokenizer(tiny_llama(Path(tmp_path_factory.mktemp("llama"))))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Takes every role; strips earlier reasoning; no generation markers."""
    return load_tokenizer(tiny_qwen3(Path(tmp_path_factory.mktemp("qwen3"))))


@pytest.fixture(params=["llama", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def with_template(tokenizer: Any, template: str) -> Any:
    import copy

    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def learned(tokenizer: Any, row: Row) -> list[str]:
    """The texts inside the loss."""
    return [tokenizer.decode(row.input_ids[a:b]) for a, b in action_spans(row.action_mask)]


def test_roles_are_adapted_to_what_the_template_shows(llama: Any, qwen3: Any) -> None:
    assert (tool_role(llama), tool_role(qwen3)) == ("user", "tool")
    assert adapt_roles(qwen3, DIALOGUE) == DIALOGUE
    adapted = adapt_roles(llama, DIALOGUE)
    assert [m["role"] for m in adapted] == ["user", "assistant"] * 3
    assert adapted[0]["content"] == "You are an analyst.\n\nHow many orders are there?"
    assert adapted[2] == {"role": "user", "content": "customers, orders"}


def test_neighbours_are_joined_only_where_the_template_wants_turns(llama: Any, qwen3: Any) -> None:
    two = [*DIALOGUE[1:4], {"role": "tool", "content": "2 rows"}]
    assert [m["role"] for m in adapt_roles(qwen3, two)] == ["user", "assistant", "tool", "tool"]
    assert adapt_roles(llama, two)[-1] == {"role": "user", "content": "customers, orders\n2 rows"}
    assert "customers, orders\n2 rows<|stop|>" in render(llama, two, add_generation_prompt=False)


def test_a_refusing_template_is_named_in_one_sentence(qwen3: Any) -> None:
    broken = with_template(qwen3, "{{ raise_exception('no thanks') }}")
    with pytest.raises(UsageError, match=r"no thanks.*model\.chat_template"):
        render(broken, DIALOGUE, add_generation_prompt=True)


def test_prompt_ids_are_those_of_the_rendered_text(tokenizer: Any) -> None:
    ids = encode_prompt(tokenizer, DIALOGUE[:4])
    assert tokenizer.decode(ids) == render(tokenizer, DIALOGUE[:4], add_generation_prompt=True)


def test_encoding_is_the_tokenizers_own(tokenizer: Any) -> None:
    text = render(tokenizer, DIALOGUE, add_generation_prompt=True)
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    tokenizer(["a", "much longer text"], padding=True, truncation=True, max_length=2)
    assert encode_text(tokenizer, text) == expected
    assert encode_text(SlowTokenizer(tokenizer), text) == expected


class SlowTokenizer:
    """A tokenizer without a Rust core."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, text: str, **kwargs: Any) -> Any:
        return self._inner(text, **kwargs)


def test_action_ends_with_the_stop_token_and_decodes_to_its_text(tokenizer: Any) -> None:
    ids = encode_action(tokenizer, DIALOGUE[:2], CALL)
    assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids[:-1]) == CALL


def test_extended_prompt_keeps_sampled_ids_and_decodes_to_the_template(tokenizer: Any) -> None:
    """Sampled ids may split the text in a way that no tokenizer would: they are kept."""
    shown, after = DIALOGUE[:2], DIALOGUE[:4]
    prompt = encode_prompt(tokenizer, shown)
    sampled = [i for c in CALL for i in tokenizer(c, add_special_tokens=False)["input_ids"]]
    sampled.append(tokenizer.eos_token_id)
    extended = extend_prompt(
        tokenizer,
        previous_messages=shown,
        previous_ids=prompt,
        action_text=CALL,
        action_ids=sampled,
        messages=after,
    )
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == prompt + sampled
    assert tokenizer.decode(extended) == render(tokenizer, after, add_generation_prompt=True)


def test_an_action_cut_by_the_token_limit_gets_the_templates_stop(tokenizer: Any) -> None:
    prompt = encode_prompt(tokenizer, DIALOGUE[:2])
    cut = tokenizer(CALL[:8], add_special_tokens=False)["input_ids"]
    messages = [*DIALOGUE[:2], {"role": "assistant", "content": CALL[:8]}, DIALOGUE[3]]
    extended = extend_prompt(
        tokenizer,
        previous_messages=DIALOGUE[:2],
        previous_ids=prompt,
        action_text=CALL[:8],
        action_ids=cut,
        messages=messages,
    )
    assert extended == encode_prompt(tokenizer, messages)


@pytest.mark.parametrize(
    "messages",
    [
        DIALOGUE[:2],  # nothing new
        [DIALOGUE[1], *DIALOGUE[2:4]],  # the beginning left the window
        [*DIALOGUE[:2], {"role": "assistant", "content": "other"}, DIALOGUE[3]],
        [*DIALOGUE[:2], DIALOGUE[3]],
    ],
)
def test_no_extension_where_the_state_is_another(tokenizer: Any, messages: list[Any]) -> None:
    extended = extend_prompt(
        tokenizer,
        previous_messages=DIALOGUE[:2],
        previous_ids=[1],
        action_text=CALL,
        action_ids=[2, tokenizer.eos_token_id],
        messages=messages,
    )
    assert extended is None


def test_templates_that_rewrite_history_are_not_extended(qwen3: Any) -> None:
    """Earlier reasoning is stripped, so the next prompt is not the last one continued."""
    thought = "<think>\nhm\n</think>\n\nok"
    shown = DIALOGUE[:2]
    messages = [*shown, {"role": "assistant", "content": thought}, DIALOGUE[5]]
    ids = encode_action(qwen3, shown, thought)
    extended = extend_prompt(
        qwen3,
        previous_messages=shown,
        previous_ids=encode_prompt(qwen3, shown),
        action_text=thought,
        action_ids=ids,
        messages=messages,
    )
    assert extended is None
    rows = dialogue_rows(qwen3, [*messages, {"role": "assistant", "content": "yes"}], 500)
    assert len(rows) == 2
    learned = [
        [qwen3.decode(r.input_ids[a:b]) for a, b in action_spans(r.action_mask)] for r in rows
    ]
    assert learned == [[thought + "<|im_end|>"], ["yes<|im_end|>"]]
    assert "hm" not in qwen3.decode(rows[1].input_ids)


def test_a_dialogue_is_one_row_whose_mask_is_the_replies(tokenizer: Any) -> None:
    rows = dialogue_rows(tokenizer, DIALOGUE, 1000)
    assert len(rows) == 1 and rows[0] == dialogue_row(tokenizer, DIALOGUE, 1000)
    row = rows[0]
    stop = tokenizer.eos_token
    assert learned(tokenizer, row) == [DIALOGUE[k]["content"] + stop for k in (2, 4, 6)]
    whole = render(tokenizer, DIALOGUE, add_generation_prompt=False)
    assert whole.startswith(tokenizer.decode(row.input_ids))
    check_stop_token(rows, stop_ids(tokenizer))


def test_mask_equals_that_of_the_templates_generation_markers(llama: Any) -> None:
    """The markers of transformers are an outside oracle for the mask."""
    oracle = llama.apply_chat_template(
        adapt_roles(llama, DIALOGUE),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    row = dialogue_row(llama, DIALOGUE, 1000)
    assert list(row.input_ids) == oracle["input_ids"]
    assert [int(x) for x in row.action_mask] == oracle["assistant_masks"]


def test_ids_equal_those_of_the_whole_text_tokenised_once(qwen3: Any) -> None:
    row = dialogue_row(qwen3, DIALOGUE, 1000)
    whole = render(qwen3, DIALOGUE, add_generation_prompt=False).removesuffix("\n")
    assert list(row.input_ids) == qwen3(whole, add_special_tokens=False)["input_ids"]


def test_only_the_last_reply_where_asked(tokenizer: Any) -> None:
    (row,) = dialogue_rows(tokenizer, DIALOGUE, 1000, last_reply_only=True)
    assert learned(tokenizer, row) == ["12 again" + tokenizer.eos_token]
    assert row.input_ids == dialogue_row(tokenizer, DIALOGUE, 1000).input_ids


def test_long_dialogues_lose_their_middle_never_the_last_reply(tokenizer: Any) -> None:
    whole = dialogue_row(tokenizer, DIALOGUE, 1000)
    cut = dialogue_row(tokenizer, DIALOGUE, len(whole) - 1)
    text = tokenizer.decode(cut.input_ids)
    assert len(cut) < len(whole) and CALL not in text
    assert "How many orders" in text and text.endswith("12 again" + tokenizer.eos_token)
    tight = dialogue_row(tokenizer, DIALOGUE, 12)
    assert len(tight) == 12 and tokenizer.decode(tight.input_ids).endswith(
        "12 again" + tokenizer.eos_token
    )
    with pytest.raises(UsageError, match="max_length"):
        dialogue_rows(tokenizer, DIALOGUE, 2)


def test_a_dialogue_without_a_reply_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="no assistant message"):
        dialogue_rows(tokenizer, DIALOGUE[:2], 100)


def test_dialogue_turns_are_the_prompts_that_rl_would_show(tokenizer: Any) -> None:
    exchanges = [(DIALOGUE[:k], DIALOGUE[k]["content"]) for k in (2, 4, 6)]
    turns = dialogue_turns(tokenizer, exchanges)
    for (prompt, action), (messages, reply) in zip(turns, exchanges, strict=True):
        assert tokenizer.decode(prompt) == render(tokenizer, messages, add_generation_prompt=True)
        assert tokenizer.decode(action) == reply + tokenizer.eos_token
    assert turns[1][0][: len(turns[0][0]) + len(turns[0][1])] == turns[0][0] + turns[0][1]


def test_recorded_tokens_stand_for_those_of_the_dialogue_or_are_refused(tokenizer: Any) -> None:
    exchanges = [(DIALOGUE[:k], DIALOGUE[k]["content"]) for k in (2, 4, 6)]
    turns = dialogue_turns(tokenizer, exchanges)
    assert recorded_turns(tokenizer, exchanges, turns) == turns
    (prompt, action), *later = turns
    spelled = [encode_text(tokenizer, letter)[0] for letter in CALL]
    broken = {
        "other tokens of the same text": [(prompt, [*spelled, action[-1]]), *later],
        "cut off": [(prompt, action[:-1]), *later],
        "not continued": [turns[0], (later[0][0][1:], later[0][1]), later[1]],
        "no tokens": [([], []), *later],
    }
    assert spelled != action[:-1] and tokenizer.decode(spelled) == CALL
    for what, recorded in broken.items():
        assert recorded_turns(tokenizer, exchanges, recorded) is None, what


def test_stop_ids_know_template_tokenizer_and_generation_config(qwen3: Any) -> None:
    end = qwen3.eos_token_id
    assert stop_ids(qwen3, None) == (end,)
    config = SimpleNamespace(eos_token_id=[7, end])
    assert stop_ids(qwen3, config) == (end, 7)
    assert stop_ids(qwen3, SimpleNamespace(eos_token_id=9)) == (end, 9)


def test_the_templates_own_end_wins_over_a_wrong_eos(qwen3: Any) -> None:
    """Base models carry eos <|endoftext|> with a ChatML template: replies end with <|im_end|>."""
    import copy

    other = copy.deepcopy(qwen3)
    other.eos_token = "<|endoftext|>"
    end = other.convert_tokens_to_ids("<|im_end|>")
    assert stop_ids(other) == (end, other.eos_token_id)


def test_plain_text_template_ends_with_eos_and_header_tokens_are_no_stop(qwen3: Any) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert stop_ids(with_template(qwen3, template)) == (qwen3.eos_token_id,)


def test_a_tokenizer_that_cannot_stop_is_refused(qwen3: Any) -> None:
    other = with_template(
        qwen3, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    other.eos_token = None
    with pytest.raises(UsageError, match="eos_token"):
        stop_ids(other)


def test_stop_token_outside_the_loss_is_found() -> None:
    good = Row((5, 6, 2, 7, 2), (False, True, True, True, True))
    check_stop_token([good], [2])
    bad = Row((5, 6, 2, 7, 8, 2), (False, True, True, False, True, False))
    with pytest.raises(UsageError, match="Row 2 has a reply without a stop token"):
        check_stop_token([good, bad], [2])


def test_a_blank_before_the_stop_token_does_not_hinder_extension(qwen3: Any) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }} <|im_end|>"
        "{% else %}[I] {{ m.content }} [/I]{% endif %}{% endfor %}"
    )
    other = with_template(qwen3, template)
    rows = dialogue_rows(other, DIALOGUE, 500)
    assert len(rows) == 1 and len(action_spans(rows[0].action_mask)) == 3


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("qwen2_5", "<|im_end|>"),
        ("qwen3_instruct_2507", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("gemma", "<end_of_turn>"),
        ("phi3", "<|end|>"),
        ("cohere", "<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_masks_equal_trls_training_templates_of_known_models(
    qwen3: Any, name: str, stop: str
) -> None:
    """TRL ships known models' templates with generation markers added: an outside oracle."""
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "chat_templates"
    plain, marked = (folder / f"{name}{end}.jinja" for end in ("", "_training"))
    if not plain.exists() or not marked.exists():
        pytest.skip(f"this TRL ships no template {name}")
    tokenizer = with_template(qwen3, plain.read_text())
    special = sorted(set(re.findall(r"<\|\w+\|>|<\w+_of_turn>", plain.read_text())))
    tokenizer.add_special_tokens({"additional_special_tokens": special, "eos_token": stop})
    tokenizer.bos_token = "<|endoftext|>"
    (row,) = dialogue_rows(tokenizer, DIALOGUE, 1000)
    oracle = tokenizer.apply_chat_template(
        adapt_roles(tokenizer, DIALOGUE),
        chat_template=marked.read_text(),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert list(row.input_ids) == oracle["input_ids"][: len(row)]
    differing = {
        tokenizer.decode([token])
        for token, ours, theirs in zip(
            row.input_ids, row.action_mask, oracle["assistant_masks"], strict=False
        )
        if ours != theirs
    }
    # Some of theirs also learn the line break after the stop token, which is never sampled.
    assert differing <= {"\n"}
