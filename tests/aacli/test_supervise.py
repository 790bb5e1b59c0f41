"""``--supervise`` as a person types it: the effect on what is played, its cost, its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.files import write_json
from stages.common.manifest import build_manifest
from stages.evaluation.serve import ServedAgent
from stages.evaluation.supervise import Supervision, supervised
from stages.interaction.endpoint.protocol import read_request
from stages.interaction.native import NativeSession
from stages.interaction.player import LoadedActor
from stages.interaction.supervision import RECONSIDER
from stages.recipe.models import Recipe
from stages.rl.run import load_supervisor
from tests.rl.test_judge import saved
from tests.tiny_models import tiny_llama

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "threads": 1,
    "environment": {"name": "sql", "max_turns": 4},
    "state": {"tool_prompt": "none", "max_tokens": 512},
    "rl": {"actor": {"max_new_tokens": 4}},
    "evaluation": {"episodes": 4},
}


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "actor")


@pytest.fixture
def recipe(tmp_path: Path, actor: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    content = {**RECIPE, "model": {"actor": str(actor)}}
    Path("tiny.yaml").write_text(json.dumps(content))
    return content


def finished(recipe: dict[str, Any], stage: str, **critic: Any) -> Path:
    """The folder of a finished run, with a critic if it is told what kind."""
    folder = tiny_llama(Path(stage))
    content = {**recipe, "rl": {**recipe["rl"], "critic": {"hidden_size": 8, **critic}}}
    whole = Recipe.model_validate(content).model_dump(mode="json")
    if critic:
        saved(folder / "critic", **critic)
    write_json(folder / "manifest.json", build_manifest(folder, stage, recipe=whole).to_json())
    return folder


@pytest.fixture
def watched(aac, actor, recipe):
    """The figures of ``aac eval`` with these words."""

    def measured(*words: Any) -> dict[str, Any]:
        result = aac("eval", "tiny.yaml", "--actor", actor, "--json", *words)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return measured


@pytest.mark.parametrize("kind", ["q", "discriminative"])
def test_a_critic_makes_the_actor_try_again(kind: str, recipe, watched) -> None:
    run = finished(recipe, "rl", kind=kind, view={"privileged": False})
    row = watched("--supervise", run, "--retries", 2)
    assert row["supervision"]["proposals_per_turn"] == 3
    assert row["supervision"]["tokens_ratio"] > 2
    content = watched("--supervise", run, "--retries", 2, "--threshold", -1e9)
    assert content["supervision"] == {"proposals_per_turn": 1.0, "tokens_ratio": 1.0}
    alone = watched()
    assert {k: v for k, v in content.items() if k != "supervision"} == alone


def test_rankings_need_no_run(watched) -> None:
    for ranking in ("log-prob", "majority"):
        assert watched("--supervise", ranking)["supervision"]["proposals_per_turn"] == 4


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the model is shown."""
    seen: list[str] = []
    real = NativeSession.ask

    def ask(self: NativeSession, requests: Any) -> Any:
        seen.extend(str(m["content"]) for r in requests for m in r.messages)
        return real(self, requests)

    monkeypatch.setattr(NativeSession, "ask", ask)
    return seen


@pytest.mark.parametrize(("mode", "kind"), [("review", "v"), ("both", "q"), ("screen", "q")])
def test_reviews_enter_the_state_of_an_actor_that_was_trained_without(
    mode: str, kind: str, recipe, watched, asked
) -> None:
    run = finished(recipe, "rl", kind=kind, view={"privileged": False})
    row = watched("--supervise", run, "--supervise-mode", mode)
    assert any("review: " in text for text in asked) is (mode != "screen")
    assert ("supervision" in row) is (mode != "review")


def test_the_agent_is_told_to_reconsider(watched, asked) -> None:
    for words, told in (((), False), (("--reconsider",), True)):
        asked.clear()
        watched("--supervise", "majority", "--retries", 1, *words)
        assert (RECONSIDER in asked) is told


def test_a_served_agent_is_screened_and_takes_no_reviews(recipe, aac) -> None:
    run = finished(recipe, "rl", kind="q", view={"privileged": False})
    costs = []

    def supervise(actor: LoadedActor) -> LoadedActor:
        wish = Supervision.of(str(run), "screen", retries=2, threshold=None, reconsider=False)
        watched = supervised(actor, wish, load_supervisor)
        costs.append(watched.policy.cost)
        return watched

    agent = ServedAgent(run, supervise)
    agent.reply(read_request({"messages": [{"role": "user", "content": "how many orders?"}]}))
    assert costs[0].proposals == 3
    refused = aac("serve", run, "--supervise", run, "--supervise-mode", "review")
    assert refused.exit_code == 2
    assert "does not hold the critic's reviews" in refused.stderr


@pytest.mark.parametrize(
    ("stage", "critic", "words", "said"),
    [("sft", {}, (), "which has no critic"),
     ("rl", {"kind": "v", "view": {"privileged": False}}, (), "judges states"),
     ("rl", {"kind": "q"}, (), "trained with privileged facts"),
     ("rl", {"kind": "q"}, ("--supervise-mode", "review"), "trained with privileged facts")],
)  # fmt: skip
def test_who_cannot_supervise(stage, critic, words, said, recipe, aac, actor) -> None:
    run = finished(recipe, stage, **critic)
    result = aac("eval", "tiny.yaml", "--actor", actor, "--supervise", run, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_supervisor_that_is_nowhere_and_a_ranking_that_should_review(recipe, aac, actor) -> None:
    ask = ("eval", "tiny.yaml", "--actor", actor, "--supervise")
    assert "is no finished run" in aac(*ask, "nowhere").stderr
    assert "only ranks proposals" in aac(*ask, "majority", "--supervise-mode", "both").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--reconsider",), "--reconsider would do nothing; give --supervise"),
     (("--supervise-mode", "both"), "--supervise-mode would do nothing; give --supervise"),
     (("--supervise", "x", "--supervise-mode", "review", "--retries", 2), "--retries would do"),
     (("--supervise", "majority", "--policy", "random"), "a script that nobody supervises")],
)  # fmt: skip
def test_options_without_effect_are_refused(words, said, recipe, aac) -> None:
    place = () if "--policy" in words else ("--actor", recipe["model"]["actor"])
    result = aac("eval", "tiny.yaml", *place, *words)
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1
