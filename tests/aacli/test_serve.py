"""``aac serve``: the openai client talks to a trained agent as it was trained to be talked to."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from stages.common.manifest import read_manifest
from stages.common.run_folder import RunRequest
from stages.evaluation.serve import ServedAgent, conversation
from stages.interaction.actions import format_call
from stages.interaction.endpoint.protocol import read_request
from stages.interaction.endpoint.server import BackgroundServer, chat_app
from stages.interaction.environments.base import Reset
from stages.interaction.states import build_state
from stages.recipe.models import Recipe
from stages.sft.run import run as train_sft
from tests.interaction.environments.programs import TOOL
from tests.tiny_models import tiny_qwen3

CALL = format_call("add", {"a": 2, "b": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that learnt to call a tool, by heart, with a window of one exchange."""
    root = tmp_path_factory.mktemp("served")
    told = [{"role": "user", "content": "what is 2 + 3?"}, {"role": "assistant", "content": CALL}]
    rows = [{"messages": told, "tools": [TOOL]}] * 4
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "name": "served",
        "model": {"actor": str(tiny_qwen3(root / "actor"))},
        "environment": {"name": "sql"},
        "state": {"exchanges": 1, "checklist": False},
        "sft": {
            "data": str(root / "rows.jsonl"),
            "steps": 60,
            "batch_size": 4,
            "learning_rate": 1e-2,
        },
        "rl": {"actor": {"max_new_tokens": 60}},
    }
    train_sft(Recipe.model_validate(content), RunRequest(root / "sft"))
    return root / "sft"


@pytest.fixture(scope="module")
def agent(folder: Path) -> ServedAgent:
    return ServedAgent(folder)


@pytest.fixture(scope="module")
def client(agent: ServedAgent) -> Any:
    server = BackgroundServer(chat_app(agent.answer, model="served"))
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.stop()


ASKED: dict[str, Any] = {
    "model": "served",
    "messages": [{"role": "user", "content": "what is 2 + 3?"}],
    "tools": [TOOL],
    "temperature": 0,
}


def test_the_agent_calls_the_tool_it_learnt(client):
    made = client.chat.completions.create(**ASKED)
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments) == {"a": 2, "b": 3}
    assert made.usage.completion_tokens > 0 and made.usage.prompt_tokens > 0
    assert [model.id for model in client.models.list()] == ["served"]


def test_streaming_says_the_same(client):
    chunks = list(
        client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    )
    calls = [c for k in chunks if k.choices for c in k.choices[0].delta.tool_calls or ()]
    assert [json.loads(c.function.arguments) for c in calls] == [{"a": 2, "b": 3}]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.total_tokens > 0


def test_without_tools_the_same_words_are_words(client):
    plain = {k: v for k, v in ASKED.items() if k != "tools"}
    made = client.chat.completions.create(**plain, max_tokens=3)
    assert made.choices[0].finish_reason == "length" and made.choices[0].message.content
    assert made.usage.completion_tokens == 3


def test_seeds_and_temperatures_count(client):
    def said(**more: Any) -> str:
        asked = {**ASKED, "temperature": 5.0, "max_tokens": 12} | more
        return json.dumps(client.chat.completions.create(**asked).choices[0].message.model_dump())

    assert said(seed=3) == said(seed=3)
    assert len({said() for _ in range(4)}) > 1


def test_the_state_is_the_one_it_was_trained_with(agent, folder):
    """A window of one exchange, with the tools' description: what RL would show."""
    told = [{"role": "user", "content": "what is 2 + 3?"}]
    for k in range(3):
        told += [{"role": "assistant", "content": f"r{k}"}, {"role": "user", "content": f"u{k}"}]
    request = read_request({**ASKED, "messages": told})
    head, turns = conversation(request.messages)
    state = build_state(read_manifest(folder).state, lambda messages: 0)
    state.reset(Reset(tuple(head), request.tools, "what is 2 + 3?"))
    for turn in turns:
        state.update(turn)
    shown, so_far = agent.shown(request)
    assert [turn.action.text for turn in so_far.turns] == ["r0", "r1", "r2"]
    assert shown == state.render()
    assert [m["content"] for m in shown[1:]] == ["what is 2 + 3?", "r2", "u2"]
    assert '"add"' in shown[0]["content"]


def test_what_cannot_be_honoured_is_refused_in_words(client):
    with pytest.raises(BadRequestError, match="top_p is not supported"):
        client.chat.completions.create(**ASKED, top_p=0.5)
    long = {**ASKED, "messages": [{"role": "user", "content": "x " * 9000}]}
    with pytest.raises(BadRequestError, match="does not fit the agent's state"):
        client.chat.completions.create(**long)


def test_folders_that_cannot_be_served(aac, folder, tmp_path):
    result = aac("serve", tmp_path)
    assert result.exit_code == 2 and "holds no manifest.json" in result.stderr
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["state"]["review"] = "words"
    (other / "manifest.json").write_text(json.dumps(manifest))
    result = aac("serve", other)
    assert result.exit_code == 2 and "state.review = words" in result.stderr


def test_the_command_serves_and_ends(aac, folder, monkeypatch):
    """The real command, asked once through its own socket."""
    import uvicorn

    seen: dict[str, Any] = {}

    async def once(self: uvicorn.Server) -> None:
        port = self.servers[0].sockets[0].getsockname()[1]
        seen["said"] = await asyncio.to_thread(_ask, f"http://127.0.0.1:{port}/v1")

    monkeypatch.setattr(uvicorn.Server, "main_loop", once)
    result = aac("serve", folder, "--port", 0, "--json")
    assert result.exit_code == 0, result.stderr
    assert seen["said"] == "tool_calls" and json.loads(result.stdout)["host"] == "127.0.0.1"


def _ask(url: str) -> str:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return str(client.chat.completions.create(**ASKED).choices[0].finish_reason)
