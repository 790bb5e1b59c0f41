"""People see our lines; other libraries' talk goes to the log; --json keeps stdout clean."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stages.common import console, libraries


def test_say_prints_to_stdout_and_is_silent_when_quiet(capsys):
    console.say("[not markup] hello")
    assert capsys.readouterr().out == "[not markup] hello\n"
    console.configure(quiet=True)
    console.say("hello")
    console.warn("careful")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "careful\n"


def test_results_are_shown_when_quiet_and_leave_json_alone(capsys):
    console.configure(quiet=True)
    console.show("the [answer]")
    assert capsys.readouterr().out == "the [answer]\n"
    console.configure(json=True)
    console.show("the answer")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "the answer\n"
    console.configure(quiet=True, json=True)
    console.show("the answer")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_what_an_agent_says_cannot_steer_the_terminal(capsys):
    said = "[/] \x1b]0;mine\x07 \x9b2J \x1b[1Athere"
    table = Table(title=said)
    table.add_column(said)
    table.add_row(said)
    for shown in (said, Text(said, style="bold"), Group(Text(said), table)):
        console.show(shown)
    console.warn(said)
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(character.isprintable() for character in text.replace("\n", ""))
    assert captured.err == "[/] �]0;mine� �2J �[1Athere\n"
    assert captured.out.count("there") == 6 and "\\" not in captured.out


def test_hushed_shows_each_warning_once_and_nothing_else(capsys):
    for _ in range(2):
        with console.hushed():
            console.say("hello")
            console.show("the answer")
            console.warn("careful")
            with console.progress("work", 3) as advance:
                advance()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "careful\n"
    console.say("hello")  # as before
    console.warn("careful")
    captured = capsys.readouterr()
    assert captured.out == "hello\n" and captured.err == "careful\n"
    console.configure()  # the next command
    with console.hushed():
        console.warn("careful")
    assert capsys.readouterr().err == "careful\n"


def test_json_keeps_standard_output_for_the_object(capsys):
    console.configure(json=True)
    console.say("hello")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "hello\n"


def test_progress_draws_nothing_where_there_is_no_terminal(capsys):
    with console.progress("learning", 3) as advance:
        advance()
        advance(2, note="loss 1.0")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_without_a_terminal_slow_work_says_a_line_once_a_minute(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.progress("zero-shot", 8) as advance:
        for second in (30, 70, 80, 140):
            now[0] = second
            advance(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["zero-shot: 4 of 8, 1 min left"]
    console.configure(quiet=True)
    with console.progress("zero-shot", 8) as advance:
        now[0] = 300
        advance(2)
    assert capsys.readouterr().out == ""


def test_libraries_talk_to_the_log_and_get_their_handlers_back(tmp_path, capsys):
    logger = logging.getLogger("transformers")
    before = logger.handlers[:], logger.propagate
    log = tmp_path / "log.txt"
    with libraries.quiet_libraries(log):
        logging.getLogger("transformers.trainer").warning("a banner")
        warnings.warn("old thing", FutureWarning, stacklevel=1)
    assert "a banner" in log.read_text() and "old thing" in log.read_text()
    assert (logger.handlers[:], logger.propagate) == before
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_warnings_are_what_they_were_after_an_error():
    with pytest.raises(ValueError, match="boom"), libraries.quiet_libraries(None):
        warnings.warn("swallowed", FutureWarning, stacklevel=1)
        raise ValueError("boom")
    with pytest.raises(FutureWarning):
        warnings.warn("heard", FutureWarning, stacklevel=1)


def test_libraries_that_arrive_late_are_quiet_too_and_speak_afterwards(
    tmp_path, capsys, monkeypatch
):
    """As DeepSpeed does: it adds a handler that prints to stdout when it is imported."""
    logger = logging.getLogger("DeepSpeed")
    monkeypatch.setattr(logger, "handlers", [])  # another test may have imported the real one
    with libraries.quiet_libraries(tmp_path / "outer.txt"):
        with libraries.quiet_libraries(tmp_path / "inner.txt"):
            late = logging.StreamHandler(sys.stdout)
            logger.addHandler(late)
            logger.warning("inner banner")
        logger.warning("outer banner")
    assert capsys.readouterr().out == ""
    assert "inner banner" in (tmp_path / "inner.txt").read_text()
    assert "inner banner" not in (tmp_path / "outer.txt").read_text()
    assert "outer banner" in (tmp_path / "outer.txt").read_text()
    logger.warning("afterwards")
    assert capsys.readouterr().out == "afterwards\n"
    assert logger.handlers == [late]


def test_progress_bars_are_off_inside_and_as_before_outside():
    import huggingface_hub.utils as hub
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    with libraries.quiet_libraries(None):
        with libraries.quiet_libraries(None):
            assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
        assert not transformers_logging.is_progress_bar_enabled()
        assert hub.are_progress_bars_disabled()
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ
    after = transformers_logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    assert after == shown


@pytest.fixture
def terminal(monkeypatch) -> None:
    """The screen is one of 40 columns."""
    for screen in (console._out, console._err):
        monkeypatch.setattr(screen, "_force_terminal", True)
        monkeypatch.setattr(screen, "_width", 40)
        monkeypatch.setattr(screen, "_height", 20)
        monkeypatch.setattr(screen, "no_color", True)


def joined(shown: str) -> list[str]:
    """The words of broken lines, as a shell reads them."""
    return shlex.split(shown.replace("\\\n", ""))


COMMAND = "aac run my.yaml --set 'a=[1, 2]' --set rl.iterations=3 --output-dir 'my runs' --quiet"


def test_a_command_to_copy_is_broken_where_a_shell_lets_it_be(terminal, capsys):
    console.say("next: " + console.folded(COMMAND, 6), whole=True)
    shown = capsys.readouterr().out
    assert shown == (
        "next: aac run my.yaml --set 'a=[1, 2]' \\\n"
        "          --set rl.iterations=3 \\\n"
        "          --output-dir 'my runs' \\\n"
        "          --quiet\n"
    )
    assert max(map(len, shown.splitlines())) <= 40
    assert joined(shown.removeprefix("next: ")) == shlex.split(COMMAND)


def test_a_command_in_a_pipe_is_one_line(capsys):
    console.say("next: " + console.folded(COMMAND, 6), whole=True)
    assert capsys.readouterr().out == f"next: {COMMAND}\n"


def test_what_went_wrong_is_wrapped_at_words_and_its_command_kept_whole(terminal, capsys):
    console.complain(f"aac: interrupted: the state after step 100 is saved; go on with: {COMMAND}")
    told, command = capsys.readouterr().err.split("go on with:\n")
    assert told.split() == "aac: interrupted: the state after step 100 is saved;".split()  # noqa: SIM905
    assert max(map(len, told.splitlines())) <= 40
    assert joined(command) == shlex.split(COMMAND)


def test_a_listing_is_never_wrapped_to_the_first_column(terminal, capsys):
    console.listing({"short": "what it is, in rather more words than one line holds", "b": "b"})
    lines = capsys.readouterr().out.splitlines()
    assert [line[:7] for line in lines] == ["short  ", "       ", "b      "]
    long = "recipes/with/a/long/name.yaml"
    console.listing({long: "what it is, in rather more words than one line holds"})
    name, *about = capsys.readouterr().out.splitlines()
    assert name == long and len(about) == 2 and all(line.startswith("  ") for line in about)
    assert max(map(len, (name, *about))) <= 40
