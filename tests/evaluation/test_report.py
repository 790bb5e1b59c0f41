"""``aac report`` as a person calls it: what it reads, writes and refuses."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.evaluation.report.markup import element, text
from stages.evaluation.report.page import safe_json
from stages.evaluation.report.runs import Run
from stages.evaluation.report.tokens import decoder_of
from tests.made_runs import (
    ALARM,
    HOSTILE,
    TOKENIZER,
    made_episode,
    made_pipeline,
    made_rl,
    made_stage,
    write_rows,
)


def aac(*words: Any) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def reported(*words: Any) -> dict[str, Any]:
    """What ``--json`` prints of a report that was written."""
    done = aac(*words, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def block(page: str, name: str) -> str:
    """The content of a data block of the page."""
    (found,) = re.findall(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page)
    return str(found)


def episodes(file: Path) -> list[dict[str, Any]]:
    """The episodes that a page holds, with their prompts and actions spelled out."""
    packed = base64.b64decode(block(file.read_text(), "episodes-data"))
    content = json.loads(gzip.decompress(packed))
    for episode in content["episodes"]:
        before: list[int] = []
        for turn in episode["turns"]:
            if "prompt" in turn:
                before = before[: turn["same"]] + turn["prompt"]
                turn["text"] = "".join(content["pieces"][number] for number in before)
                turn["chosen"] = "".join(content["pieces"][number] for number in turn["action"])
    return list(content["episodes"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_rl(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    """The page of that run, written once."""
    return Path(reported(run)["page"])


def test_the_figures_are_those_of_the_folder(run: Path, page: Path) -> None:
    """Wilson's interval of 24 of 64 by hand: 0.2666 to 0.4975."""
    told = reported(run, "--output", page.with_name("again.html"))
    assert told["run"] == str(run) and told["stage"] == "rl"
    first = told["headline"][0]
    assert first["what"] == "first evaluation (iteration 3)" and first["episodes"] == 64
    assert (first["mean"], first["low"], first["high"]) == pytest.approx(
        (0.375, 0.2666, 0.4975), abs=1e-4
    )
    assert told["curves"]["actor/kl"][3] == [4, 0.61]
    assert told["curves"]["critic/explained_variance"][0][0] == 2  # what is null is left out
    assert [row["alarm"] for row in told["alarms"]] == ["kl_surge"]
    assert len(told["audit"]) == 4 and told["verdicts"]["6-1"]["verdict"] == "bad"
    assert page.with_name("again.html").read_text() == page.read_text()


def test_episodes_are_whole_and_say_why_they_are_there(page: Path) -> None:
    shown = {row["id"]: row for row in episodes(page)}
    assert {row["source"] for row in shown.values()} == {"audit", "last", "first"}
    best, worst = shown["0-training-6-0"], shown["0-training-6-3"]
    assert best["why"] == ["best paid of its iteration"]
    assert worst["why"] == ["worst paid of its iteration"] and not worst["success"]
    # three right tools at 0.05 each, and a success, by the default proportions
    assert best["total"] == pytest.approx(1.15) and worst["total"] == pytest.approx(0.15)
    assert best["components"] == {"success": 1.0, "right_tool": 0.15}
    assert best["turns"][2]["paid"] == {"success": 1.0, "right_tool": 0.05}


def test_a_turn_shows_the_exact_prompt_the_action_and_what_the_critic_saw(page: Path) -> None:
    made = made_episode(50)
    shown = next(row for row in episodes(page) if row["id"] == "0-training-6-0")
    for turn, own in zip(shown["turns"], made.turns, strict=True):
        assert turn["text"] == own.messages[0]["content"]
        assert turn["chosen"] == turn["said"] == own.action.text
        assert len(turn["action"]) == len(turn["logprobs"]) == len(own.action_ids)
        for name in ("value", "review", "advantage"):
            assert turn[name] == pytest.approx(own.info[name], abs=1e-4)
    view = shown["turns"][1]["view"]
    assert "facts: gold answer: 50" in view and "did: " + made.turns[0].action.text in view
    assert made.turns[1].action.text not in view  # c_1 knows nothing of a_1


def test_how_many_are_shown_is_asked_for_and_said(run: Path) -> None:
    out = run.parent / "few.html"
    reported(run, "--episodes", 3, "--output", out)
    shown = episodes(out)
    whole = [row["id"] for row in shown if row["opening"]]
    assert whole == ["0-audit-6-0", "0-audit-6-1", "0-training-6-0"]
    assert [row["id"] for row in shown if not row["opening"]] == ["0-audit-3-0", "0-audit-3-1"]
    words = "Here are 2 of 4 episodes kept for audit (the newest; 2 more in words only) and 1 of 24"
    assert words in out.read_text()


def test_several_runs_lie_side_by_side(run: Path) -> None:
    other = made_rl(run.parent / "b", seed=1, alarms=())
    told = reported(run, other)
    assert told["page"] == str(run / "side-by-side.html")
    assert [row["recipe"]["seed"] for row in told["runs"]] == [0, 1]
    charts = json.loads(block(Path(told["page"]).read_text(), "data"))["charts"]
    labels = [line["label"] for line in charts[0]["lines"]]
    assert labels == ["quickstart, seed 0", "quickstart, seed 1"]
    assert {row["run"] for row in episodes(Path(told["page"]))} == {0, 1}
    refused = aac(run, run)
    assert refused.exit_code == 2 and "named twice" in refused.stderr


def test_alarms_are_marked_on_the_curves_they_speak_of(page: Path) -> None:
    charts = json.loads(block(page.read_text(), "data"))["charts"]
    own = {chart["title"] for chart in charts for alarm in chart["alarms"] if alarm["own"]}
    assert own == {"KL to the SFT actor"}
    assert {chart["alarms"][0]["step"] for chart in charts if chart["stage"] == "rl"} == {4}


def test_a_pipeline_shows_its_table_its_rl_run_and_the_curves_of_all_stages(tmp_path: Path) -> None:
    root = made_pipeline(tmp_path / "pipeline")
    told = reported(root)
    assert told["run"] == str(root / "rl") and told["page"] == str(root / "report.html")
    assert told["headline"][0]["what"] == "before RL, held-out tasks, sampled"
    page = (root / "report.html").read_text()
    for words in (
        "All stages",
        "base, zero-shot",
        "93.8",
        "Supervised fine-tuning",
        "Reward model",
    ):
        assert words in page
    stages = {chart["stage"] for chart in json.loads(block(page, "data"))["charts"]}
    assert stages == {"rl", "sft", "reward"}


@pytest.mark.parametrize(
    ("stage", "figures", "words"),
    [
        ("sft", ("sft/loss", "sft/token_accuracy"), "Nothing has been evaluated yet."),
        (
            "reward",
            ("reward/loss", "reward/accuracy"),
            "It ranks 90.0\u00a0% of 100 held-out pairs",
        ),
    ],
)
def test_the_other_stages_show_their_own(
    stage: str, figures: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    folder = made_stage(tmp_path / "some", stage, figures, accuracy=0.9, held_out=100)
    told = reported(folder)
    assert set(told["curves"]) == set(figures)
    assert words in Path(told["page"]).read_text()


def test_a_run_that_goes_on_is_shown_as_it_stands(tmp_path: Path) -> None:
    told = reported(made_rl(tmp_path / "rl", finished=False))
    page = Path(told["page"])
    assert "The run is not finished; this is how it stood at iteration 6." in page.read_text()
    shown = episodes(page)[-1]
    assert shown["turns"][0]["paid"] == {"right_tool": 1.0}  # raw: the recipe is not known
    assert "raw components" in block(page.read_text(), "data")


def test_pictures_of_every_curve_lie_beside_the_page(run: Path) -> None:
    told = reported(run, "--png", "--output", run.parent / "page.html")
    files = [Path(name) for name in told["plots"]]
    assert {file.parent for file in files} == {run.parent / "page-plots"}
    assert {"rl-success.png", "rl-dropped-episodes.png"} <= {file.name for file in files}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_policy_lets_only_the_pages_own_scripts_run(page: Path) -> None:
    content = page.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', content)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.group(1).split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy.group(1)
    (script,) = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    library = gzip.decompress(base64.b64decode(block(content, "plotly")))
    marks = [
        f"'sha256-{base64.b64encode(hashlib.sha256(code).digest()).decode()}'"
        for code in (script.encode(), library)
    ]
    assert rules["script-src"].split() == marks
    assert content.count("<script") == 4 and len(content) < 3_000_000


def test_hostile_words_never_become_markup(tmp_path: Path) -> None:
    folder = made_rl(tmp_path / "rl", said=HOSTILE, alarms=[ALARM | {"means": HOSTILE}])
    told = reported(folder, "--png")
    content = Path(told["page"]).read_text()
    assert "<img" not in content and "window.hacked=1</script>" not in content
    assert content.count("</script>") == 4
    shown = episodes(Path(told["page"]))
    assert HOSTILE in shown[0]["goal"] and HOSTILE in shown[0]["turns"][0]["said"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "does not exist; name the folder of"),
        (lambda folder: folder.write_text("x"), "is a file; name the folder of"),
        (lambda folder: folder.mkdir(), "holds no metrics.jsonl of a stage; name the folder of"),
        (
            lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").write_text('{"step": 1}\n')),
            "holds no metrics.jsonl of a stage",
        ),
    ],
)
def test_other_folders_are_refused_in_one_sentence(make: Any, words: str, tmp_path: Path) -> None:
    make(tmp_path / "it")
    done = aac(tmp_path / "it")
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1


def test_broken_files_of_a_run_are_named(tmp_path: Path) -> None:
    folder = made_rl(tmp_path / "rl")
    with (folder / "trajectories/00005.jsonl").open("a") as file:
        file.write("{\n")
    done = aac(folder)
    assert done.exit_code == 2 and "00005.jsonl line 5 is not valid JSON" in done.stderr


def test_an_older_runs_audit_is_shown_in_words(tmp_path: Path) -> None:
    folder = made_rl(tmp_path / "rl")
    for file in (folder / "audit/episodes").glob("*.jsonl"):
        file.unlink()
    shown = [row for row in episodes(Path(reported(folder)["page"])) if row["source"] == "audit"]
    assert len(shown) == 4 and shown[0]["opening"] == []
    assert shown[0]["turns"][0]["seen"][0]["content"] == "row 0 "


def test_text_and_json_are_inert() -> None:
    assert element("p", HOSTILE, title='"><b>') == (
        f'<p title="&quot;&gt;&lt;b&gt;">{text(HOSTILE)}</p>'
    )
    assert "<" not in text(HOSTILE) and text("\ud800\0") == "?\ufffd"
    spelled = safe_json({HOSTILE: ["<!--", "\u2028", "\ud800"]})
    assert "<" not in spelled and "\u2028" not in spelled
    assert json.loads(spelled) == {HOSTILE: ["<!--", "\u2028", "?"]}


def test_pieces_of_tokens_join_to_the_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    decode = decoder_of(Run(tmp_path, "rl", []))
    assert decode is not None
    words = "SELECT  'näive 你好 🎉'\n<s>"
    ids = Tokenizer.from_file(str(TOKENIZER)).encode(words).ids
    pieces = decode(ids)
    assert "".join(pieces) == words and len(pieces) == len(ids)
    assert decode(ids[: ids.index(ids[-1]) - 1]) != []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert decoder_of(Run(tmp_path, "rl", [])) is None


def test_long_texts_and_many_tokens_stay_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.evaluation.report.episodes.MOST_TOKENS", 30)
    monkeypatch.setattr("stages.evaluation.report.episodes.LONGEST", 40)
    shown = episodes(Path(reported(made_rl(tmp_path / "rl"))["page"]))
    turns = [turn for row in shown for turn in row["turns"]]
    assert max(len(turn["said"]) for turn in turns) == 40
    assert sum(len(turn.get("prompt", ())) for turn in turns) <= 30
    assert any(turn.get("left_out") for turn in turns)


def test_a_run_without_episodes_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "rl"
    folder.mkdir()
    write_rows(folder / "metrics.jsonl", [{"step": 1, "reward/total": 0.5}])
    (folder / ".aac-run.json").write_text('{"stage": "rl"}')
    page = Path(reported(folder)["page"]).read_text()
    assert "This run keeps no episodes." in page and "No episode was kept for audit" in page
