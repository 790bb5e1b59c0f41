"""``--launch``: the same command again, in several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from aacli.options import StageOptions
from stages.common.console import folded, say
from stages.common.errors import UsageError
from stages.common.launch import Launch, environment, own_words, typed
from stages.common.ranks import launched


def check_launch(options: StageOptions) -> None:
    """Raises UsageError for options of launching that do not go together."""
    if options.launch is None and (options.processes or options.hostfile):
        raise UsageError(
            "--processes and --hostfile say how to launch; give --launch ddp, zero2 or zero3."
        )
    if options.launch and launched():
        raise UsageError("--launch is given inside of launched processes; leave it out there.")


def relaunched(options: StageOptions, words: Sequence[str] | None = None) -> bool:
    """Whether the command was run in several processes, as ``options`` asked, and is done.

    ``words``: of another command than the one that was typed. Raises UsageError for options that
    do not go together, RunError for a process that failed.
    """
    check_launch(options)
    if options.launch is None:
        return False
    launch = Launch(options.launch, options.processes, options.hostfile)
    arguments = launch.arguments(own_words(sys.argv[1:] if words is None else words))
    say(f"launching: {folded(typed(arguments), 0)}", whole=True)
    launch.check_reach()
    from stages.common.engine import run_launcher

    with _stdout_aside() if options.json and words is not None else nullcontext():
        run_launcher(arguments, environment())
    return True


@contextmanager
def _stdout_aside() -> Iterator[None]:
    """Inside, what processes write to standard output goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
