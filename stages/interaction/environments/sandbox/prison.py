"""The walls around a program: limits of the kernel, and an interpreter that says no in words.

Where Linux has them: seccomp (no new process, socket, signal, or limit) and Landlock (files of its
own folder and of Python's library only). Everywhere: resource limits, and an audit hook for the
same things, which tells the program why, and which is all there is on other systems. A determined
program can get around the hook, not around the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from typing import Any

STDLIB = os.path.dirname(os.path.abspath(json.__file__)).rsplit(os.sep, 1)[0]
_LINUX = sys.platform == "linux"
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if _LINUX else None
_PDEATHSIG, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 22, 36, 38

_DENIED = {
    "processes": (56, 57, 58, 59, 322, 435),  # clone fork vfork execve execveat clone3
    "signals": (62, 129, 200, 234, 297, 424, 434),  # kill sigqueueinfo tkill tgkill ... pidfd_*
    "sockets": (41, 42, 43, 44, 46, 49, 50, 53, 288, 307),
    "other processes' memory": (101, 310, 311, 312, 298, 319, 323),
    "escape": (109, 112, 155, 157, 160, 161, 165, 166, 272, 302, 308, 321, 425, 426, 427, 428),
    "kernel": (103, 169, 175, 176, 246, 248, 249, 250, 304, 313, 320),
    "what outlives a process": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 240, 241),
    "file systems": (133, 259, 429, 430, 432, 442),  # mknod mknodat open_tree fsopen ...
}
"""System calls of x86-64 that fail with EPERM; the numbers never change."""
_X86_64, _ALLOW, _EPERM, _KILL = 0xC000003E, 0x7FFF0000, 0x00050001, 0x80000000


def adopt_orphans() -> None:
    """Processes that a child leaves behind become ours, so that they can be ended."""
    if _LIBC is not None:
        _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Process ids of all our children; none where the system does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def lock(request: dict[str, Any]) -> None:
    """Put up every wall there is, for this process and for good."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limits = {
        resource.RLIMIT_CPU: int(request["cpu_s"]),
        resource.RLIMIT_AS: int(request["memory_bytes"]),
        resource.RLIMIT_FSIZE: int(request["file_bytes"]),
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))
    if _LIBC is not None:
        _LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            _landlock(str(request["folder"]))
            _seccomp()
    sys.addaudithook(_guard(os.path.realpath(request["folder"]), int(request["files"])))


def _seccomp() -> None:
    """A filter over system calls; without effect where the kernel or the machine has none."""
    if platform.machine() != "x86_64":
        return
    load, equal, at_least, give_back = 0x20, 0x15, 0x35, 0x06
    numbers = sorted({number for group in _DENIED.values() for number in group})
    program = [(load, 0, 0, 4), (equal, 1, 0, _X86_64), (give_back, 0, 0, _KILL), (load, 0, 0, 0)]
    # Numbers from 2^30 on are another dialect of the same calls (x32).
    program.append((at_least, len(numbers) + 1, 0, 0x40000000))
    program += [(equal, len(numbers) - k, 0, number) for k, number in enumerate(numbers)]
    program += [(give_back, 0, 0, _ALLOW), (give_back, 0, 0, _EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    )
    _LIBC.prctl(_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(header)), 0, 0)


def _landlock(folder: str) -> None:
    """Files: the folder to read and write, Python's library to read, nothing else."""
    version = _LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    handled = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    attributes = ctypes.create_string_buffer(struct.pack("Q", handled))
    ruleset = _LIBC.syscall(444, attributes, ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    reading = 1 << 2 | 1 << 3
    writing = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | (version >= 3) << 14
    for path, allowed in ((folder, reading | writing), (STDLIB, reading | 1)):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, opened))
        _LIBC.syscall(445, ruleset, 1, rule, 0)
        os.close(opened)
    _LIBC.syscall(446, ruleset, 0)
    os.close(ruleset)


_FORBIDDEN = {
    "socket": "the network is not available",
    "subprocess": "no other process may be started",
    "os.fork": "no other process may be started",
    "os.forkpty": "no other process may be started",
    "os.exec": "no other process may be started",
    "os.posix_spawn": "no other process may be started",
    "os.spawn": "no other process may be started",
    "os.system": "no other process may be started",
    "os.kill": "no signal may be sent",
    "os.killpg": "no signal may be sent",
    "signal.pthread_kill": "no signal may be sent",
    "ctypes": "ctypes is not available",
    "gc.get": "the collector is not available",
    "resource": "limits stay as they are",
    "sys.addaudithook": "hooks are not available",
    "sys.settrace": "tracing is not available",
    "sys.setprofile": "tracing is not available",
    "mmap": "memory maps are not available",
    "os.link": "links are not available",
    "os.symlink": "links are not available",
    "os.chown": "owners stay as they are",
    "shutil.chown": "owners stay as they are",
}
_PATHS = ("open", "os.", "shutil.", "glob.", "tempfile.", "pathlib.", "sqlite3.", "dbm.")
_TWO_PATHS = ("os.rename", "shutil.move", "shutil.copyfile", "shutil.copytree", "shutil.copymode")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _guard(folder: str, files: int) -> Any:
    """The audit hook. All it needs is bound here, out of the program's reach."""
    real, join, text, check = os.path.realpath, os.path.join, isinstance, PermissionError
    opened = 0

    def within(path: Any, roots: tuple[str, ...]) -> bool:
        name = path.decode("utf-8", "replace") if text(path, bytes) else path
        if not text(name, str):
            return True  # a descriptor: whatever it names was opened under these rules
        full = real(join(folder, name))
        return any(full == root or full.startswith(root + os.sep) for root in roots)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal opened
        for name, reason in _FORBIDDEN.items():
            if event.startswith(name):
                raise check(reason)
        if not event.startswith(_PATHS) or not arguments:
            return
        flags = arguments[2] if event == "open" and text(arguments[2], int) else _WRITING
        if event == "open" and not flags & _WRITING:
            if not within(arguments[0], (folder, STDLIB)):
                raise check("files outside the folder cannot be read")
            return
        if event == "open" and (opened := opened + 1) > files:
            raise check(f"at most {files} files may be written")
        reads = event in ("os.listdir", "os.scandir", "os.getxattr")
        paths = arguments[:2] if event in _TWO_PATHS else arguments[:1]
        if not all(within(path, (folder, STDLIB) if reads else (folder,)) for path in paths):
            raise check("files outside the folder are out of reach")

    return hook
