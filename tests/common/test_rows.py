"""Rows: merging turns and cutting, on hand-worked ids."""

from __future__ import annotations

from stages.common.rows import MergedRow, Row, action_spans, cut_row, keep_both_ends, merge_turns

# P0 = 1 2 3, A0 = 4 5, O0 = 6 7, A1 = 8, O1 = 9 9, A2 = 10 11
ROW = Row(
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11),
    tuple(bool(x) for x in (0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1)),
)


def test_turns_whose_prompts_extend_become_one_row() -> None:
    turns = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6, 7], [8])]
    assert merge_turns(turns) == [
        MergedRow(
            (1, 2, 3, 4, 5, 6, 7, 8),
            (False, False, False, True, True, False, False, True),
            (-1, -1, -1, 0, 0, -1, -1, 1),
        )
    ]


def test_a_prompt_that_differs_opens_a_row() -> None:
    turns = [((1, 2), (3,)), ((1, 2, 3, 4), (5,)), ((1, 2, 9), (6,)), ((1, 2, 9, 6), (7,))]
    rows = merge_turns(turns)
    assert [row.ids for row in rows] == [(1, 2, 3, 4, 5), (1, 2, 9, 6, 7)]
    assert rows[1].turn_index == (-1, -1, -1, 2, 3)
    assert rows[1].action_mask == (False, False, False, True, True)


def test_a_prompt_equal_to_the_last_is_not_an_extension() -> None:
    rows = merge_turns([((1, 2), (3,)), ((1, 2), (3,))])
    assert [row.ids for row in rows] == [(1, 2, 3), (1, 2, 3)]
    assert [row.turn_index for row in rows] == [(-1, -1, 0), (-1, -1, 1)]


def test_merging_nothing() -> None:
    assert merge_turns([]) == []


def test_spans() -> None:
    assert action_spans(ROW.action_mask) == [(3, 5), (7, 8), (10, 12)]
    assert action_spans((False, False)) == []
    assert action_spans(()) == []
    assert action_spans((True,)) == [(0, 1)]


def test_short_rows_are_left_alone() -> None:
    assert cut_row(ROW, 12) is ROW


def test_oldest_exchange_leaves_first_and_the_goal_stays() -> None:
    cut = cut_row(ROW, 11)
    assert cut == Row(
        (1, 2, 3, 8, 9, 9, 10, 11),
        tuple(bool(x) for x in (0, 0, 0, 1, 0, 0, 1, 1)),
    )


def test_what_the_last_action_answers_stays_then_the_middle_goes() -> None:
    cut = cut_row(ROW, 6)
    assert cut == Row((1, 2, 9, 9, 10, 11), (False,) * 4 + (True,) * 2)


def test_an_action_that_cannot_fit_is_reported() -> None:
    assert cut_row(ROW, 2) is None
    assert cut_row(ROW, 3) == Row((9, 10, 11), (False, True, True))


def test_middle() -> None:
    assert keep_both_ends([1, 2, 3, 4, 5], 3) == (1, 4, 5)
    assert keep_both_ends([1, 2], 3) == (1, 2)
    assert keep_both_ends([1, 2, 3], 0) == ()
