"""A static pool on its way in: episodes of anybody's file, made fit for this actor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.common.chat import dialogue_turns, encode_prompt
from stages.common.console import warn
from stages.common.errors import UsageError
from stages.common.records import Record, read_records
from stages.common.rows import keep_both_ends
from stages.evaluation.data_convert import experience
from stages.evaluation.data_shapes import examine
from stages.interaction.trajectory import Trajectory, Turn

POOL_VERSION = 0
"""The actor version of whatever is in a static pool: nothing there is older than the rest."""


@dataclass(frozen=True)
class Reader:
    """What reads tokens here, and how long a row it may be given."""

    tokenizer: Any
    vocabulary: int
    """Ids from here on mean nothing to the actor."""
    max_length: int


def read_episodes(path: Path) -> list[Trajectory]:
    """Episodes of a run's folder, a pool's, or a file: trajectories of aac, or agent episodes.

    Those that the machinery dropped are left out. UsageError, naming file and line, for whatever
    is no episode, and if none is left.
    """
    if not path.exists():
        raise UsageError(
            f"the pool {path} does not exist; give a run's folder, a file of aac collect "
            "experience, or agent episodes with rewards."
        )
    inner = path / "pool" if (path / "pool").is_dir() else path
    episodes = [_episode(record) for record in read_records(inner)]
    whole = [e for e in episodes if e.error is None and e.turns]
    if not whole:
        raise UsageError(
            f"all {len(episodes)} episodes of the pool {path} are empty or were dropped by the "
            "machinery; give one with whole episodes."
        )
    return whole


def fitted(episodes: Sequence[Trajectory], reader: Reader) -> list[Trajectory]:
    """The episodes with the actor's token ids on every turn, numbered anew, all of one version.

    Ids that are known stay, and must be of the actor's own tokenizer and template; where they are
    not known the texts are encoded, over-long prompts without their middle. A reply that alone is
    too long is left to the critic. UsageError for tokens of another actor, or if no reply fits.
    """
    done, counts = [], Counter[str]()
    for number, episode in enumerate(episodes):
        if all(turn.action_ids and turn.prompt_ids for turn in episode.turns):
            _check_ids(episode, number, reader)
            turns = list(episode.turns)
        else:
            turns = _encoded(episode, reader, counts)
        done.append(replace(episode.with_turns(turns), key=(number,), actor_version=POOL_VERSION))
    if not any(turn.action_ids for e in done for turn in e.turns):
        raise UsageError(
            f"no reply of the pool fits into rl.offline.max_length (or the actor's context) = "
            f"{reader.max_length} tokens; raise it, or give a pool of shorter replies."
        )
    if counts.total():
        warn(
            f"{counts['cut']} turns of the pool lost the middle of their prompt, as "
            f"rl.offline.max_length (or the actor's context) is {reader.max_length}; "
            f"{counts['lost']} whose reply alone is longer teach the actor nothing."
        )
    return done


def refuse_unscored(episodes: Sequence[Trajectory]) -> None:
    """UsageError where V-trace is asked for and nobody knows how likely an action was."""
    for number, episode in enumerate(episodes, start=1):
        if not all(len(t.logprobs) == len(t.action_ids) for t in episode.turns):
            raise UsageError(
                f"episode {number} of the pool (task {episode.task_id}) has turns without "
                "log-probs, which rl.critic.off_policy = vtrace needs; set it to none."
            )


def _episode(record: Record) -> Trajectory:
    problem = examine(record).problem
    if problem:
        raise UsageError(problem)
    (row,) = experience([record])
    return Trajectory.from_json(row)


def _check_ids(episode: Trajectory, number: int, reader: Reader) -> None:
    """UsageError unless the first prompt reads as this tokenizer and template would write it."""
    first, *_ = episode.turns
    known = all(max(*t.prompt_ids, *t.action_ids) < reader.vocabulary for t in episode.turns)
    if known and encode_prompt(reader.tokenizer, list(first.messages)) == list(first.prompt_ids):
        return
    raise UsageError(
        f"episode {number + 1} of the pool (task {episode.task_id}) was written with another "
        "tokenizer or chat template than the SFT actor's; give a pool of an actor of its family, "
        "or remove prompt_ids, action_ids and logprobs from the rows, so that their texts are "
        "encoded anew."
    )


def _encoded(episode: Trajectory, reader: Reader, counts: Counter[str]) -> list[Turn]:
    exchanges = [(turn.messages, turn.action.text) for turn in episode.turns]
    told = zip(episode.turns, dialogue_turns(reader.tokenizer, exchanges), strict=True)
    turns = []
    for turn, (prompt, action) in told:
        room = reader.max_length - len(action)
        if room < 1:
            counts["lost"] += 1
            turns.append(replace(turn, prompt_ids=(), action_ids=(), logprobs=()))
            continue
        counts["cut"] += len(prompt) > room
        ids = keep_both_ends(prompt, room)
        turns.append(replace(turn, prompt_ids=ids, action_ids=tuple(action), logprobs=()))
    return turns
