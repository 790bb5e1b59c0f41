"""The words that start several processes: what ``--launch`` runs and prints for a scheduler."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.common.errors import UsageError

CONFIGS = Path(__file__).parents[2] / "recipes" / "launch"
"""DeepSpeed configurations by name; copy one and give its path to change it."""
_HOST = re.compile(r"^\s*(\S+)\s+slots=(\d+)\s*$")
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Launch:
    """How a person asked for several processes."""

    how: str
    """ddp, the name of a configuration, or a DeepSpeed configuration file."""
    processes: int | None = None
    """Over all machines; None: one per GPU."""
    hostfile: Path | None = None
    """Lines ``host slots=N``, one per machine."""

    def arguments(self, words: Sequence[str]) -> list[str]:
        """What ``accelerate launch`` is given to run ``aac WORDS…`` in every process.

        Raises UsageError for a configuration or hostfile that cannot work.
        """
        hosts = {} if self.hostfile is None else _hosts(self.hostfile)
        count = self.processes or sum(hosts.values()) or _gpus()
        if self.how == "ddp":
            given = ["--multi_gpu"]
            if hosts or count < 2:
                raise UsageError(
                    f"--launch ddp has {'--hostfile' if hosts else f'--processes {count}'}, "
                    "expected 2 or more processes of one machine; for several machines take zero2 "
                    "or zero3."
                )
        else:
            given = ["--use_deepspeed", "--deepspeed_config_file", str(_config(self.how))]
            given += ["--zero3_init_flag", "false"]
        several = len(hosts) > 1
        if hosts:
            self._check_shares(hosts, count)
        if several:
            given += ["--deepspeed_hostfile", str(self.hostfile)]
            given += ["--deepspeed_multinode_launcher", "pdsh", "--machine_rank", "0"]
            # Each machine's shell reads them once more; DeepSpeed sees to those with spaces.
            words = [word if " " in word else shlex.quote(word) for word in words]
        given += ["--num_processes", str(count), "--num_machines", str(max(len(hosts), 1))]
        given += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        given += ["--main_process_port", "29500" if several else "0"]
        return [*given, "--module", "aacli", *words]

    def check_reach(self) -> None:
        """UsageError if there are several machines, and nothing here to start processes on them."""
        if self.hostfile is None or len(_hosts(self.hostfile)) == 1:
            return
        missing = [name for name in ("pdsh", "ssh") if shutil.which(name) is None]
        if missing:
            raise UsageError(
                f"--hostfile {self.hostfile} names several machines, reached by pdsh over ssh, but "
                f"{' and '.join(missing)} is not installed here; install it, or let a scheduler "
                "start the processes."
            )

    def _check_shares(self, hosts: Mapping[str, int], count: int) -> None:
        """UsageError unless every machine can have the same number of processes."""
        if count % len(hosts):
            raise UsageError(
                f"--processes {count} do not divide evenly among the {len(hosts)} machines of "
                f"{self.hostfile}; give a multiple of {len(hosts)}."
            )
        share = count // len(hosts)
        small = [host for host, slots in hosts.items() if slots < share]
        if small:
            raise UsageError(
                f"--hostfile {self.hostfile} gives {small[0]} {hosts[small[0]]} slots, but "
                f"{count} processes on {len(hosts)} machines are {share} on each; give fewer "
                "--processes."
            )
        if len(hosts) == 1 and not _is_here(*hosts):
            raise UsageError(
                f"--hostfile {self.hostfile} names one machine, {next(iter(hosts))}, and it is not "
                "this one; run the command there, or call this one localhost."
            )


def environment() -> dict[str, str]:
    """Variables that the processes need besides those that are set already."""
    wanted = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    if not _gpus():
        wanted["DS_ACCELERATOR"] = "cpu"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def typed(arguments: Sequence[str]) -> str:
    """The same as a line for a shell or a cluster's scheduler."""
    return shlex.join(
        [*(f"{k}={v}" for k, v in environment().items()), "accelerate", "launch", *arguments]
    )


def own_words(words: Sequence[str]) -> list[str]:
    """A command's words less those that say how to launch it."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--launch", "--processes", "--hostfile"):
            skip = True
        elif not word.startswith(("--launch=", "--processes=", "--hostfile=")):
            kept.append(word)
    return kept


def _config(how: str) -> Path:
    """The file of a configuration's name, or the file itself."""
    named = CONFIGS / f"{how}.json"
    file = named if named.is_file() else Path(how)
    known = ", ".join(["ddp", *sorted(p.stem for p in CONFIGS.glob("*.json"))])
    try:
        stage = json.loads(file.read_text("utf-8"))["zero_optimization"]["stage"]
    except FileNotFoundError:
        raise UsageError(
            f"--launch {how} is not known, expected one of {known}, or a DeepSpeed configuration "
            "file (JSON)."
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
        raise UsageError(
            f"--launch {how} is no DeepSpeed configuration: expected JSON with "
            f"zero_optimization.stage; copy one of {CONFIGS}."
        ) from None
    if stage not in (2, 3):
        raise UsageError(f"--launch {how} has ZeRO stage {stage}, expected 2 or 3.")
    return file


def _hosts(file: Path) -> dict[str, int]:
    try:
        lines = [line.partition("#")[0] for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--hostfile {file} cannot be read; give a text file.") from None
    hosts: dict[str, int] = {}
    for line in filter(str.strip, lines):
        found = _HOST.match(line)
        if not found:
            raise UsageError(f"--hostfile {file} has {line.strip()!r}, expected 'host slots=8'.")
        if found.group(1) in hosts:
            raise UsageError(f"--hostfile {file} has {found.group(1)} twice; give it one line.")
        hosts[found.group(1)] = int(found.group(2))
    if not hosts:
        raise UsageError(f"--hostfile {file} names no machine; expected lines 'host slots=8'.")
    return hosts


def _is_here(host: str) -> bool:
    """Whether a machine's name is this one's; no name server is asked."""
    own = os.uname().nodename
    return host in (*_HERE, own, own.partition(".")[0])


def _gpus() -> int:
    """GPUs of this machine, as their driver lists them: torch is too slow to ask."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
