"""``aac collect preferences --human``: a person says which of two replies is the better one (B11).

The actor plays each task once, and answers every state it met a second time. What a person says
is kept in two files: the rows that ``aac train-reward`` reads, and beside them a session with all
pairs and what was said of each, so that the next call goes on where this one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from stages.common.console import show
from stages.common.errors import UsageError
from stages.common.files import read_json, write_json, write_lines
from stages.common.live import printable
from stages.common.manifest import fingerprint
from stages.common.records import read_records
from stages.common.seeding import keyed_generator, set_threads
from stages.evaluation.collect import play_actor
from stages.evaluation.run import Reviewers, no_reviewers
from stages.evaluation.store import identity
from stages.interaction.generation import Policy, Request
from stages.interaction.states.window import cut_middle
from stages.interaction.terminal import Terminal
from stages.interaction.trajectory import Message, Trajectory
from stages.recipe.models import Recipe

FIRST, SECOND, SKIP = "1", "2", "skip"
ANSWERS: Mapping[str, str] = {"1": FIRST, "2": SECOND, "skip": SKIP, "s": SKIP}
WIDTH = 80
"""Columns of what is shown."""
MESSAGES_SHOWN = 5
"""Newest messages of a state that are shown, besides the first."""
LONGEST_MESSAGE, LONGEST_REPLY = 400, 1200
"""Characters of a message and of a reply that are shown."""
SECOND_REPLIES, ORDER = 1, 2
"""Places in random keys, beside 0 for the episodes."""


def label_command(
    recipe: Recipe,
    actor: str,
    *,
    output: Path,
    overwrite: bool = False,
    reviewers: Reviewers = no_reviewers,
) -> dict[str, Any]:
    """Show pair after pair until all are answered or the person quits; returns the counts.

    Raises UsageError where ``output`` is not this session's, or the actor says nothing twice.
    """
    set_threads(recipe.threads)
    session = _session(recipe, actor, output, overwrite, reviewers)
    answered = [pair for pair in session["pairs"] if pair["label"]]
    if answered:
        show(f"going on after {len(answered)} of {len(session['pairs'])} pairs")
        _save(output, session)  # the last call may have ended between the two files
    _ask_all(output, session)
    labels = Counter(pair["label"] for pair in session["pairs"])
    rows = labelled_rows(session["pairs"])
    show(f"{len(rows)} of {len(session['pairs'])} pairs labelled, {labels[SKIP]} skipped: {output}")
    return {
        "kind": "preferences",
        "output": str(output),
        "rows": len(rows),
        "pairs": len(session["pairs"]),
        "skipped": labels[SKIP],
        "left": labels[None],
        "fingerprint": fingerprint(rows),
    }


def session_path(output: Path) -> Path:
    """Where the pairs of ``output`` are kept with what was said of them."""
    return output.with_suffix(".session.json")


def labelled_rows(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pairs that a person chose between, as rows for ``aac train-reward``."""
    rows = []
    for pair in pairs:
        if pair["label"] not in (FIRST, SECOND):
            continue
        better = int(pair["label"] == SECOND)
        sides = [[{"role": "assistant", "content": text}] for text in pair["replies"]]
        rows.append(
            {
                "prompt": pair["prompt"],
                "chosen": sides[better],
                "rejected": sides[1 - better],
                "task_id": pair["task_id"],
                "turn": pair["turn"],
            }
        )
    return rows


def reply_pairs(
    episodes: Sequence[Trajectory], policy: Policy, *, seed: int, batch: int
) -> list[dict[str, Any]]:
    """Every state of the episodes with its reply and another one of ``policy``, in random order.

    ``batch`` states are answered at once. Equal and empty replies make no pair. Two draws of one
    policy can change places, so the side on which a reply is shown says nothing.
    """
    met = [(episode, turn) for episode in episodes for turn in episode.turns]
    requests = [
        Request(
            turn.messages,
            episode.tools,
            (seed, SECOND_REPLIES, episode.key[-1], turn.index),
            episode.turns[turn.index - 1] if turn.index else None,
        )
        for episode, turn in met
    ]
    others = [
        reply
        for start in range(0, len(requests), batch)
        for reply in policy.generate(requests[start : start + batch])
    ]
    pairs: list[dict[str, Any]] = []
    for (episode, turn), other in zip(met, others, strict=True):
        replies = [turn.action.text.strip(), other.text.strip()]
        if all(replies) and replies[0] != replies[1]:
            pairs.append(
                {
                    "prompt": [dict(message) for message in turn.messages],
                    "replies": replies,
                    "task_id": episode.task_id,
                    "turn": turn.index,
                    "label": None,
                }
            )
    order = keyed_generator(seed, ORDER).permutation(len(pairs))
    return [pairs[k] for k in order]


def pair_table(pair: Mapping[str, Any]) -> Table:
    """Two replies side by side."""
    table = Table(width=WIDTH)
    for name in (FIRST, SECOND):
        table.add_column(name, ratio=1, overflow="fold")
    table.add_row(*(printable(cut_middle(text, LONGEST_REPLY)) for text in pair["replies"]))
    return table


def state_lines(prompt: Sequence[Message]) -> list[str]:
    """The beginning and the end of a state in words."""
    shown = [prompt[0], *prompt[max(1, len(prompt) - MESSAGES_SHOWN) :]]
    lines = [f"{m['role']}: {cut_middle(str(m['content']), LONGEST_MESSAGE)}" for m in shown]
    if left := len(prompt) - len(shown):
        lines.insert(1, f"({left} messages between)")
    return lines


def _session(
    recipe: Recipe, actor: str, output: Path, overwrite: bool, reviewers: Reviewers
) -> dict[str, Any]:
    """The one that was begun, else a new one."""
    begun, path = _begun_with(recipe, actor), session_path(output)
    if path.exists() and not overwrite:
        session: dict[str, Any] = read_json(path)
        if session.get("begun_with") != begun:
            raise UsageError(
                f"{output} was begun with another recipe or actor; pass --overwrite to begin anew,"
                " or another --output."
            )
        _require_own_rows(output, session)
        return session
    if output.exists() and not overwrite:
        raise UsageError(
            f"{output} exists and is no labelling session; pass --overwrite to replace it, or "
            "another --output."
        )
    episodes, loaded = play_actor(recipe, actor, each=1, reviewers=reviewers)
    batch = recipe.evaluation.batch
    pairs = reply_pairs(episodes, loaded.policy, seed=recipe.seed, batch=batch)
    if not pairs:
        raise UsageError(
            f"{actor} gave the same reply twice in every state of {len(episodes)} episodes, so "
            "there is nothing to choose between; raise evaluation.temperature or reward.tasks."
        )
    output.unlink(missing_ok=True)
    session = {"begun_with": begun, "pairs": pairs}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, session)
    return session


def _require_own_rows(output: Path, session: Mapping[str, Any]) -> None:
    """Rows that came from elsewhere are not to be written over."""
    own = labelled_rows(session["pairs"])
    if output.exists() and any(row not in own for _, row in read_records(output)):
        raise UsageError(
            f"{output} holds rows that are not of its labelling session; pass --overwrite to "
            "begin anew, or another --output."
        )


def _begun_with(recipe: Recipe, actor: str) -> str:
    """What a session's pairs depend on."""
    content = recipe.model_dump(mode="json")
    sections = [content[name] for name in ("seed", "model", "environment", "state")]
    return fingerprint([sections, recipe.reward.tasks, identity(actor)])


def _ask_all(output: Path, session: Mapping[str, Any]) -> None:
    terminal, pairs = Terminal(), session["pairs"]
    for number, pair in enumerate(pairs, start=1):
        if pair["label"]:
            continue
        show(f"\npair {number} of {len(pairs)} (turn {pair['turn'] + 1})")
        for line in state_lines(pair["prompt"]):
            show(line)
        show(pair_table(pair))
        label = _asked(terminal)
        if label is None:
            return
        pair["label"] = label
        _save(output, session)


def _asked(terminal: Terminal) -> str | None:
    """A label; None at quit or an end of input."""
    while (word := terminal.ask("better reply: 1, 2, skip or quit > ")) is not None:
        if word.lower() in ANSWERS:
            return ANSWERS[word.lower()]
        if word.lower() == "q":
            return None
        show(f"{word[:20]!r} is no answer; type 1, 2, skip or quit.")
    return None


def _save(output: Path, session: Mapping[str, Any]) -> None:
    """Each file whole or not at all; the session first, as the rows can be made of it."""
    write_json(session_path(output), session)
    if rows := labelled_rows(session["pairs"]):
        write_lines(output, rows)
