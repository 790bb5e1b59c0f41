"""Repeats, ratios and exponents, against values worked out by hand; differing work is refused."""

import math

import pytest

from stages.bench.grpo import require_same_episodes
from stages.bench.measure import (
    Spread,
    Times,
    exponent,
    growth,
    interleaved,
    middle,
    ratios,
    require_same_work,
)
from stages.bench.progress import Progress
from stages.bench.running import phases
from stages.bench.startup import imports
from stages.common.errors import RunError


def times(*seconds, **figures):
    return [Times(s, figures) for s in seconds]


def test_sides_take_turns_and_the_first_round_is_not_counted():
    order = []

    def side(name):
        def run():
            order.append(name)
            return Times(len(order), {})

        return run

    taken = interleaved({"a": side("a"), "b": side("b")}, repeats=2)
    assert order == ["a", "b"] * 3
    assert [t.seconds for t in taken["a"]] == [3, 5]
    assert [t.seconds for t in taken["b"]] == [4, 6]


def test_a_ratio_is_taken_repeat_by_repeat():
    assert ratios(times(4, 9, 2), times(2, 3, 2)) == Spread(2, 1, 3)
    assert middle(times(5, 1, 2)) == 2
    with pytest.raises(ValueError):
        ratios(times(1, 2), times(1))
    with pytest.raises(ValueError, match="no repeats"):
        Spread.of([])


def test_exponents_of_known_laws():
    sizes = [1, 3, 10, 50]
    assert exponent(sizes, [7 * n**1.5 for n in sizes]) == pytest.approx(1.5, rel=1e-9)
    assert exponent(sizes, [4, 4, 4, 4]) == pytest.approx(0, abs=1e-12)
    # by hand: the slope between two points
    assert exponent([2, 8], [3, 5]) == pytest.approx(math.log(5 / 3) / math.log(4), rel=1e-9)
    square_and_line = [[1, 1], [9, 3]]  # of sizes 1 and 3, two repeats each
    assert growth([1, 3], square_and_line) == Spread(1.5, 1, 2)
    for sizes, costs in (([2, 2], [1, 2]), ([1, 2], [0, 1]), ([], [])):
        with pytest.raises(ValueError):
            exponent(sizes, costs)


def test_work_that_differs_is_not_compared():
    same = {"ours": times(1, tokens=10, steps=4), "theirs": times(2, tokens=10, steps=4)}
    assert require_same_work(same, ("tokens", "steps")) == {"tokens": 10, "steps": 4}
    planted = same | {"theirs": times(2, tokens=11, steps=4)}
    with pytest.raises(RunError, match="did not do the same work.*11"):
        require_same_work(planted, ("tokens", "steps"))


def test_episodes_that_differ_in_one_token_are_not_compared():
    episodes = [[5, 6, 7], [8, 9]]
    assert require_same_episodes(episodes, [list(e) for e in episodes]) == 5
    with pytest.raises(RunError, match="episode 1 is not the same.*from token 1 on"):
        require_same_episodes(episodes, [[5, 6, 7], [8, 1]])
    with pytest.raises(RunError, match="episode 0 is not the same.*3 and 2 tokens"):
        require_same_episodes(episodes, [[5, 6], [8, 9]])


def test_time_left_follows_the_pace():
    now = [0.0]
    progress = Progress({"a": 10, "b": 20, "c": 30}, clock=lambda: now[0])
    progress.tell("a", "begins")
    assert progress.left == 60  # as planned: nothing is known yet
    now[0] = 20  # twice as long as planned
    progress.tell("b", "begins")
    assert progress.left == 2 * 50
    now[0] = 25
    progress.tell("b", "goes on")
    assert progress.left == 2 * 50 - 5
    now[0] = 1000
    assert progress.left == 0


def test_phases_are_seconds_only(tmp_path):
    row = '{"step": 1, "time/rollout_s": 1.5, "time/actor_s": 2, "time/tokens_per_s": 900, "kl": 3}'
    (tmp_path / "metrics.jsonl").write_text(row + "\n")
    assert phases(tmp_path) == [{"time/rollout_s": 1.5, "time/actor_s": 2}]


def test_imports_are_told_by_package():
    profile = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:    500000 |     500000 |   torch.nn\n"
        "import time:   1000000 |    1500000 | torch\n"
        "a line that something else printed\n"
        "import time:    250000 |     250000 | json\n"
    )
    assert imports(profile) == {"torch": 1.5, "json": 0.25}
