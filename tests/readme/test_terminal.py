"""A run as a person sees it in a terminal of 80 columns, from the first line to the last."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.readme.documents import ROOT
from tests.readme.home import SMALL
from tests.readme.picture import at, main, svg
from tests.terminal import CONTROL, shown

FOREIGN = re.compile(r"warn|site-packages|huggingface|deprecat|traceback|\[rank|torch\.", re.I)
"""What other libraries say."""
BAR = re.compile(r"([a-z][\w ,-]*?) +[━╸╺]+ +(\d+)/(\d+)")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], int]:
    """All that came, the screen at the end, and the exit code."""
    place = tmp_path_factory.mktemp("terminal")
    (place / "recipes").symlink_to(ROOT / "recipes")
    sets = [word for text in SMALL for word in ("--set", text)]
    command = [sys.executable, "-m", "aacli", "run", "recipes/quickstart.yaml", *sets]
    pieces = list(shown(command, place))
    lines, code = at(pieces, "")
    return [piece for piece in pieces if isinstance(piece, str)], lines, code


@pytest.fixture(scope="module")
def lines(seen) -> list[str]:
    """The screen without colours, and without the commands to copy, which must not be broken."""
    plain = [CONTROL.sub("", line) for line in seen[1]]
    return [line for line in plain if not re.match(r"^(next: |      )aac ", line)]


def test_a_run_in_a_terminal_of_80_columns(seen, lines):
    text = "\n".join(lines)
    assert seen[2] == 0, text
    assert [line for line in lines if cell_len(line) > 80] == []
    assert [line for line in lines if FOREIGN.search(line)] == []
    for number, stage in enumerate(("sft", "reward", "rl"), 1):
        assert text.count(f"╭─ {stage}  stage {number} of 3 ") == 1, text
    # One line for each of who was measured, whole: success, return, turns and repeated calls.
    figures = r" +(–|\S+ %) +(–|\S+ %) +\S+ +\S+ +\S+ %"
    for who in ("base, zero-shot", "says nothing", "random calls", "most frequent answer"):
        assert re.search(rf"^ {who} +–{figures}", text, re.MULTILINE), text


def test_no_bar_jumps_back_or_stays(seen, lines):
    """Each bar moves forward, to its end, and makes room for what is said next."""
    stands = [
        (name, int(done), int(total))
        for piece in seen[0]
        for name, done, total in BAR.findall(CONTROL.sub("", piece))
    ]
    assert {name for name, *_ in stands} >= {"base, sampled", "base, greedy", "demonstrations"}
    for (name, before, total), (other, after, whole) in pairwise(stands):
        assert after >= before or (before, after) == (total, 0), (name, other)
        assert after <= whole
    framed = [line for line in lines if line.startswith(("│", "╭", "╰"))]
    assert not [line for line in lines if "━" in line and line not in framed]


def test_a_picture_is_drawn_of_it(seen, tmp_path: Path):
    drawn = svg(seen[1], "aac")
    assert "http" not in drawn.replace("http://www.w3.org/", "") and "@font-face" not in drawn
    assert drawn.startswith("<svg") and len(drawn) < 200_000
    assert "stage&#160;3&#160;of&#160;3" in drawn


def test_a_picture_is_made_by_the_command_that_is_shown(tmp_path: Path):
    """At a moment, whatever comes after it; the exit code is the command's."""
    program = "print('\\x1b[36mbefore\\x1b[0m <1>'); print('now'); print('after'); exit(3)"
    out = tmp_path / "picture.svg"
    assert main(str(out), "before", sys.executable, "-c", program) == 3
    drawn = out.read_text()
    assert "before" in drawn and "&lt;1&gt;" in drawn and "fill: #39c5cf" in drawn
    with pytest.raises(SystemExit, match="'never' was never on the screen"):
        main(str(out), "never", sys.executable, "-c", program)
