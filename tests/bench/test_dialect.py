"""The base model's dialect, as TRL renders and reads it, against what this project writes."""

import pytest

from stages.bench.dialect import teach_tools
from stages.bench.grpo_work import Work, demonstrations, tasks
from stages.bench.models import BASE
from stages.common.models import load_tokenizer
from stages.interaction.actions import format_call, parse_action

trl = pytest.importorskip("trl.chat_template_utils")


@pytest.fixture(scope="module")
def tokenizer():
    return teach_tools(load_tokenizer(BASE))


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_tables", {}),
        ("answer", {"value": "16"}),
        ("query", {"sql": "SELECT \"é\" FROM t WHERE name = '}' AND k < 3"}),
    ],
)
def test_calls_are_read_and_rendered_as_this_project_writes_them(tokenizer, name, arguments):
    call = format_call(name, arguments)
    prompt = [{"role": "user", "content": "?"}]
    prefix = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    said = trl.parse_response(tokenizer, ids(tokenizer, f"{call}<|end|>"), prefix=prefix)
    assert said["tool_calls"] == [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
    ]
    as_text = [*prompt, {"role": "assistant", "content": call}]
    expected = load_tokenizer(BASE).apply_chat_template(as_text, return_dict=False)
    for messages in (as_text, [*prompt, said]):
        assert tokenizer.apply_chat_template(messages, return_dict=False) == expected


@pytest.mark.parametrize("end", ["<|end|>", " <|end|>", ""])
def test_a_call_is_read_with_a_space_at_its_end_and_where_the_limit_cut_its_stop(tokenizer, end):
    call = format_call("describe", {"table": "orders"})
    said = trl.parse_response(tokenizer, ids(tokenizer, call + end), prefix=ids(tokenizer, "<s>"))
    assert len(said["tool_calls"]) == len(parse_action(call).calls) == 1


@pytest.mark.parametrize(
    "reply",
    ["Done.<|end|>", "<|end|>", '{"name": "query", "arguments": {"sql": }}<|end|>'],
)
def test_what_is_no_call_ends_an_episode_on_both_sides(tokenizer, reply):
    said = trl.parse_response(tokenizer, ids(tokenizer, reply), prefix=ids(tokenizer, "<s>"))
    assert not said.get("tool_calls")
    assert not parse_action(reply.removesuffix("<|end|>")).calls


def test_trl_takes_the_template_for_tool_calls_over_many_turns(tokenizer):
    assert trl.supports_tool_calling(tokenizer)
    assert trl.is_chat_template_prefix_preserving(tokenizer)


def test_demonstrations_end_with_a_reply_without_a_call():
    for dialogue in demonstrations(Work(demonstrations=4)):
        first, *between, last = dialogue["messages"]
        assert first["role"] == "user"
        assert [m["role"] for m in between] == ["assistant", "tool"] * (len(between) // 2)
        assert all(parse_action(m["content"]).calls for m in between[::2])
        assert last == {"role": "assistant", "content": "Done."}


def test_held_out_tasks_are_no_training_tasks():
    by_split = {}
    for row in tasks(Work(tasks=512)):
        by_split.setdefault(row["split"], set()).add(row["id"])
    assert {k: len(v) for k, v in by_split.items()} == {
        "train": 512,
        "validation": 256,
        "test": 256,
    }
    assert len(set.union(*by_split.values())) == 1024
