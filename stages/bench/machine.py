"""The machine and the software that figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from stages.common.machine import GIB

PACKAGES = ("torch", "transformers", "trl")


def described() -> dict[str, Any]:
    """Processor, cores, memory, system and versions; JSON-able."""
    import psutil

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / GIB),
        "system": platform.system(),
        "versions": {
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


def commit() -> str:
    """Of this project's checkout, marked where files differ from it; "unknown" outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def _processor(file: Path = Path("/proc/cpuinfo")) -> str:
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
