"""Programs that own their loop, written with the openai client as their users would."""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.request
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
SEEN: list[Any] = []
"""What the programs got, for the tests."""


def client(base_url: str, api_key: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)


def calculator(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Asks until the agent answers without a call; streaming for odd seeds. The reward: did it
    say the sum that the tool told it?"""
    told: list[Any] = [{"role": "user", "content": "what is 2 + 3?"}]
    with client(base_url, api_key) as openai:
        for _ in range(4):
            message = _asked(openai, told, stream=task["seed"] % 2 == 1)
            told.append(message)
            if not message.get("tool_calls"):
                return float("5" in (message["content"] or ""))
            for call in message["tool_calls"]:
                given = json.loads(call["function"]["arguments"])
                content = str(given.get("a", 0) + given.get("b", 0))
                told.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return 0.0


def _asked(openai: Any, told: list[Any], *, stream: bool) -> dict[str, Any]:
    """One reply, whole or in pieces, as the message that goes back."""
    options = {"model": "any", "messages": told, "tools": [TOOL], "temperature": 1.0}
    if not stream:
        made = openai.chat.completions.create(**options)
        return made.choices[0].message.model_dump(exclude_none=True)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    chunks = openai.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                message.setdefault("tool_calls", []).append(call.model_dump(exclude={"index"}))
    return message


def forgetful(base_url: str, api_key: str, task: dict[str, Any]) -> dict[str, float]:
    """Sums its history up before the third request: the conversation is another one."""
    told: list[Any] = [{"role": "user", "content": "talk"}]
    with client(base_url, api_key) as openai:
        for turn in range(4):
            if turn == 2:
                told = [{"role": "user", "content": "so far: much talk"}]
            message = openai.chat.completions.create(model="x", messages=told).choices[0].message
            told += [message.model_dump(exclude_none=True), {"role": "user", "content": f"{turn}"}]
    return {"reward": 0.5}


def talker(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Two replies; longer ones are better. For actors that know nothing."""
    told: list[Any] = [{"role": "user", "content": "talk"}]
    total = 0
    with client(base_url, api_key) as openai:
        for _ in range(2):
            content = openai.chat.completions.create(model="x", messages=told).choices[0].message
            total += len(content.content or "")
            told += [{"role": "assistant", "content": content.content}]
            told += [{"role": "user", "content": "more"}]
    return min(total, 100) / 100


def parrot(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Two replies without any package; won if the second is the seed."""
    told: list[Any] = [{"role": "user", "content": f"say {task['seed']}"}]
    for _ in range(2):
        body = {"model": "x", "messages": told}
        told.append(_post(f"{base_url}/chat/completions", body)["choices"][0]["message"])
        told.append({"role": "user", "content": "again"})
    return float(told[-2]["content"] == str(task["seed"]))


def silent(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Never asks."""
    return 1.0


def failing(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Breaks after its first reply."""
    with client(base_url, api_key) as openai:
        openai.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
    raise ValueError("no paper in the printer")


def endless(base_url: str, api_key: str, task: dict[str, Any]) -> float:
    """Asks for ever."""
    told: list[Any] = [{"role": "user", "content": "talk"}]
    with client(base_url, api_key) as openai:
        while True:
            try:
                made = openai.chat.completions.create(model="x", messages=told)
            except Exception as error:
                SEEN.append((threading.current_thread(), str(error)))
                raise
            told += [made.choices[0].message.model_dump(exclude_none=True)]
            told += [{"role": "user", "content": "go on"}]


def main() -> None:
    """As a command: all it knows stands in the environment's variables."""
    task = json.loads(os.environ["AAC_TASK"])
    body = {"model": "x", "messages": [{"role": "user", "content": f"say {task['seed']}"}]}
    answer = _post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    said = answer["choices"][0]["message"]["content"]
    if "--crash" in sys.argv:
        sys.exit("out of luck")
    _post(os.environ["AAC_REWARD_URL"], {"reward": float(said == str(task["seed"]))})


def _post(url: str, body: Any) -> Any:
    sent = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=60) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main()
