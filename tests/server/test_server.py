"""A real OpenAI-compatible server (``transformers serve``) plays the customer and the judge.

The model is small and random, so it talks nonsense: what is tested is that real requests get real
replies, and that whatever such a simulator does is labelled and never held against the agent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.interaction.arena import Arena
from stages.interaction.environments.service import HabitOptions, ServiceOptions
from stages.interaction.speaker import EndpointSpeaker, FolderSpeaker, SpeakerOptions
from tests.tiny_models import tiny_qwen3

pytestmark = pytest.mark.server
RECIPE = Path(__file__).parents[2] / "recipes/service.yaml"
PATIENCE_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(tmp_path_factory.mktemp("server") / "talker")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """``transformers serve`` on loopback, with its own process group so that nothing is left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [str(Path(sys.executable).with_name("transformers")), *words]
    log = (folder.parent / "log").open("w+")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(
        command, stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, folder.parent / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
        log.close()


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")


def speaker(url: str, folder: Path, **more: object) -> dict:
    return {"endpoint": url, "model": str(folder), "max_tokens": 12, **more}


def test_the_server_says_what_the_same_folder_says(url, folder):
    messages = [
        {"role": "system", "content": "You are an analyst."},
        {"role": "user", "content": "How many orders have status shipped?"},
    ]
    there = EndpointSpeaker(SpeakerOptions(**speaker(url, folder, temperature=0)))
    here = FolderSpeaker(SpeakerOptions(folder=folder, max_tokens=12, temperature=0))
    said = there.say(messages, key="x").strip()  # the server drops blanks at the ends
    assert said == here.say(messages, key="x").strip() and said


def test_a_served_model_plays_the_customer_of_a_real_evaluation(url, folder):
    user = {"kind": "model", "speaker": speaker(url, folder), "retries": 2}
    words = ["--policy", "expert", "--json", "--set", f"environment.user={json.dumps(user)}"]
    words += ["--set", "evaluation.episodes=6", "--set", "environment.max_turns=4"]
    result = CliRunner().invoke(app, ["eval", str(RECIPE), *words])
    if result.exit_code == 1:  # every customer was sick: said, not scored
        assert "SickSimulator" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["episodes"] + figures["dropped"] == 6
    assert figures["sick_simulator"] == figures["dropped"]


def test_a_served_model_judges_or_is_found_unfit(url, folder):
    judge = {"kind": "model", "speaker": speaker(url, folder), "retries": 1}
    options = ServiceOptions(expert=HabitOptions.clean(), judge=judge)
    world = Arena(options, {"checklist": False, "tool_prompt": "none"})
    episodes = world.demonstrate(world.tasks("test", 3, 0), seed=0)
    for episode in episodes:
        if episode.error is None:
            assert 0.0 <= episode.turns[-1].rewards["judge"] <= 1.0
        else:
            assert episode.error == "SickSimulator: the judge gave no verdict in 2 tries"
