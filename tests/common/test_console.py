"""People see our lines; other libraries' talk goes to the log; --json keeps stdout clean."""

from __future__ import annotations

import logging
import warnings

import pytest

from stages.common import console


def test_say_prints_to_stdout_and_is_silent_when_quiet(capsys):
    console.say("[not markup] hello")
    assert capsys.readouterr().out == "[not markup] hello\n"
    console.configure(quiet=True)
    console.say("hello")
    console.warn("careful")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "careful\n"


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


def test_libraries_talk_to_the_log_and_get_their_handlers_back(tmp_path, capsys):
    logger = logging.getLogger("transformers")
    before = logger.handlers[:], logger.propagate
    log = tmp_path / "log.txt"
    with console.quiet_libraries(log):
        logging.getLogger("transformers.trainer").warning("a banner")
        warnings.warn("old thing", FutureWarning, stacklevel=1)
    assert "a banner" in log.read_text() and "old thing" in log.read_text()
    assert (logger.handlers[:], logger.propagate) == before
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_warnings_are_what_they_were_after_an_error():
    with pytest.raises(ValueError, match="boom"), console.quiet_libraries(None):
        warnings.warn("swallowed", FutureWarning, stacklevel=1)
        raise ValueError("boom")
    with pytest.raises(FutureWarning):
        warnings.warn("heard", FutureWarning, stacklevel=1)
