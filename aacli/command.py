"""Registers commands: shared options from a dataclass, an example in the help, errors in words."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer

from aacli.options import Basics, StageOptions, StudyOptions
from stages.common import console, interrupts
from stages.common.errors import AacError
from stages.common.libraries import quiet_libraries
from stages.common.live import printable
from stages.common.ranks import launched, own_rank

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def command(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command of ``app``.

    Its help ends with ``example``. The parameter that is annotated with a dataclass of
    ``aacli.options`` becomes that dataclass's options. Errors become one sentence and an exit
    code.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        wrapper = _expanded(function)
        wrapper.__doc__ = _unwrapped(function.__doc__ or "")
        app.command(name, epilog=f"Example: {example}")(wrapper)
        return function

    return register


def _unwrapped(text: str) -> str:
    """A docstring whose paragraphs are one line each, for any width of terminal."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def emit(result: Any) -> None:
    """Print one JSON object on standard output: what ``--json`` asked for."""
    typer.echo(json.dumps(result, default=str))


def _expanded(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` with its options dataclass spelled out as keyword parameters."""
    hints = get_type_hints(function, include_extras=True)
    place = next(name for name, hint in hints.items() if is_dataclass(hint))
    options_type: type[Basics] = hints[place]
    option_hints = get_type_hints(options_type, include_extras=True)
    names = _option_names(options_type)

    @functools.wraps(function)
    def wrapper(**given: Any) -> None:
        options = options_type(**{name: given.pop(name) for name in names})
        _guarded(functools.partial(function, **given, **{place: options}), options)

    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != place
    ]
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(options_type, name),
            annotation=option_hints[name],
        )
        for name in names
    ]
    parameters = [*own, *shared]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _option_names(options_type: type[Basics]) -> list[str]:
    """The fields of an options dataclass; what every command has comes last in the help."""
    basics = [field.name for field in fields(Basics)]
    names = [field.name for field in fields(options_type)]
    return [name for name in names if name not in basics] + basics


def _guarded(call: Callable[[], None], options: Basics) -> None:
    """Run a command; what goes wrong becomes one sentence on standard error and an exit code."""
    console.configure(quiet=options.quiet, json=options.json)
    # With --debug a person wants to see what the libraries say.
    quiet = nullcontext() if options.debug else quiet_libraries(None)
    try:
        with interrupts.listening(), quiet, _one_voice(options):
            call()
            _part()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as stopped:
        _trace(options)
        _complain(_interrupted(stopped, options))
        raise typer.Exit(INTERRUPTED) from None
    except AacError as error:
        _trace(options)
        _complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except Exception as error:
        _trace(options)
        _complain(_unexpected(error, options))
        raise typer.Exit(1) from None


@contextmanager
def _one_voice(options: Basics) -> Iterator[None]:
    """Of several processes only the main one speaks (all do with ``--debug``)."""
    if own_rank() == 0 or options.debug:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _part() -> None:
    """Leave the other processes in order, if there are any."""
    if launched():
        from stages.common.engine import leave

        leave()


def _interrupted(stopped: KeyboardInterrupt, options: Basics) -> str:
    """What was saved; of what trains, the command that goes on. (A launcher tells that itself.)"""
    saved = str(stopped) or "nothing new is saved"
    if launched():
        return saved
    if not isinstance(options, StageOptions | StudyOptions):
        return "interrupted."
    return f"interrupted: {saved}; {console.GOES_ON}{going_on(sys.argv[1:], options)}"


def going_on(words: Sequence[str], options: Basics) -> str:
    """The command that goes on where this one stopped: without what would start anew.

    A study knows no half-done overwriting, so it is told to overwrite again.
    """
    drop = {"--resume"} | ({"--overwrite"} if isinstance(options, StageOptions) else set())
    kept, skip = [], False
    for word in words:
        if not skip and word.split("=")[0] not in drop:
            kept.append(word)
        skip = not skip and word == "--resume"
    return shlex.join(["aac", *kept])


def _unexpected(error: Exception, options: Basics) -> str:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return (
            f"{error.filename or 'a file'} could not be written ({error.strerror}); make room and "
            "run the same command again: it goes on from the last checkpoint, if there is one."
        )
    first_line = (str(error).strip() or "no message").splitlines()[0]
    text = f"the run failed ({type(error).__name__}: {first_line})"
    return text + ("." if options.debug else "; run again with --debug for the stack trace.")


def _trace(options: Basics) -> None:
    if options.debug:
        traceback.print_exc()


def _complain(sentence: str) -> None:
    """To the person, or to the launcher, which tells of the first process that failed.

    Whatever it was made of, it comes as one line that ends like a sentence.
    """
    sentence = printable(" ".join(sentence.split()))
    # A command is to be copied as it stands.
    sentence += "" if sentence.endswith(".") or console.GOES_ON in sentence else "."
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if launched() and file:
        Path(file).write_text(json.dumps(_told(sentence)), encoding="utf-8")
        return
    console.complain(f"aac: {sentence}")


def _told(sentence: str) -> dict[str, object]:
    """The shape that torch's launcher reads."""
    extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
    return {"message": {"message": sentence, "extraInfo": extra, "sentence": sentence}}
