"""A board: what it draws, and how long it says a stage still takes."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from stages.common import console
from stages.common.live import Board, Curve, duration, frame, plain, short, sparkline

CURVES = (Curve("success", "episode/success"), Curve("reward", "reward/total"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(board: Board, width: int = 80, **how: bool) -> list[str]:
    out = Console(file=io.StringIO(), width=width, force_terminal=False)
    out.print(frame(board, width, **how))
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 5, ""),
        ([1.0], 5, "▅"),
        ([2.0, 2.0], 5, "▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),  # means of two
        ([0, 1, 0, 1], 2, "▅▅"),
        ([3.0, 1.0], 0, ""),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values, width, expected):
    assert sparkline(values, width) == expected


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "0 s"), (2, "5 s"), (38, "40 s"),
    (57, "1 min"), (185, "3 min"), (3600, "1 h 0 min"), (7900, "2 h 12 min")])  # fmt: skip
def test_seconds_in_words(seconds, words):
    assert duration(seconds) == words


def test_the_time_left_follows_the_newest_pace_and_runs_down():
    clock = Clock()
    board = Board("rl", 10, clock=clock)
    assert board.seconds_left is None
    clock.now += 6
    board.move(2)  # three seconds each
    assert board.seconds_left == pytest.approx(24)
    clock.now += 4
    assert board.seconds_left == pytest.approx(20)
    clock.now += 100
    assert board.seconds_left == 0
    for step in range(3, 11):
        clock.now += 1
        board.move(step)
    assert board.seconds_left == 0


def test_a_resumed_stage_starts_where_it_is_and_never_goes_back():
    clock = Clock()
    board = Board("rl", 10, step=6, clock=clock)
    board.move(4)
    assert board.step == 6
    clock.now += 5
    board.move(7)
    assert board.seconds_left == pytest.approx(15)
    assert board.head() == "step 7 of 10, 15 s left"


def full_board() -> Board:
    board = Board("rl", 4, unit="iteration", curves=CURVES, parts="reward/", clock=Clock())
    for step in range(1, 5):
        board.move(step)
        board.tell({"episode/success": step / 4, "reward/total": 2.0 * step, "actor/kl": 9.0,
                    "reward/sub_goal": 1.5, "reward/off_topic": 0.0, "reward/capped_dense": 3.0,
                    "reward/strange": float("nan")})  # fmt: skip
    board.alarm = "iteration 3: repetition, the actor repeats itself more and more and more"
    call = "turn 2: query(SELECT " + "x" * 100 + ")"
    board.turn = ["goal: how many\norders?", call, "result: \x1b[2J6"]
    return board


def test_a_frame_shows_it_all_and_no_line_is_too_long():
    board = full_board()
    board.place = "stage 3 of 3"
    lines = drawn(board)
    text = "\n".join(lines)
    assert "rl  stage 3 of 3" in lines[0] and "iteration 4 of 4" in lines[-1]
    assert "success   1" in text and "reward    8" in text and "▁▃▆█" in text
    assert "parts     sub_goal 1.5 " in text and "off_topic" not in text and "capped" not in text
    assert "alarm     iteration 3: repetition" in text and "more and more" in text
    assert "goal: how many orders?" in text and "result: �[2J6" in text and "\x1b" not in text
    for width in (80, 60, 30, 300):
        assert max(cell_len(line) for line in drawn(board, width)) <= min(width, 100)
    assert "▁" not in "".join(drawn(board, blocks=False))


def test_a_frame_keeps_its_height():
    empty = Board("rl", 4, unit="iteration", curves=CURVES, parts="reward/", clock=Clock())
    assert len(drawn(empty)) == len(drawn(full_board()))


def test_an_ended_board_says_how_long_it_took_or_that_it_stopped():
    board = full_board()
    board.clock.now += 125  # type: ignore[attr-defined]
    board.end()
    assert board.head() == "iteration 4 of 4, done in 2 min"
    early = Board("sft", 4, clock=Clock())
    early.end()
    assert early.head() == "step 0 of 4, stopped"


def test_where_there_is_no_terminal_each_tenth_is_a_line(capsys):
    clock = Clock()
    board = Board("sft", 40, curves=(Curve("loss", "sft/loss"),), clock=clock)
    with console.watch(board) as shown:
        for step in range(1, 41):
            clock.now += 30
            board.move(step)
            board.tell({"sft/loss": 1 / step})
            shown()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0] == "sft: step 4 of 40, 18 min left  loss 0.25"
    assert lines[-1] == "sft: step 40 of 40, 0 s left  loss 0.025"
    console.configure(quiet=True)
    with console.watch(Board("sft", 1, clock=clock)) as shown:
        shown()
    assert capsys.readouterr().out == ""


def test_figures_are_short():
    assert [short(v) for v in (0.51234, 12.345, 1.23e-5, 100.0)] == [
        "0.512", "12.3", "1.23e-05", "100",
    ]  # fmt: skip
    assert plain(Board("rl", 3, clock=Clock())) == "rl: step 0 of 3"
