"""What this machine can do, for ``aac doctor``. Nothing heavy is loaded before it is asked for."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

GIB = 2**30
PACKAGES = {
    "torch": ("everything", "torch"),
    "transformers": ("everything", "transformers"),
    "trl": ("everything; PPO needs 1.12", "trl"),
    "accelerate": ("several processes", "accelerate"),
    "deepspeed": ("ZeRO-2, ZeRO-3, offload", "deepspeed"),
    "peft": ("LoRA and QLoRA adapters", "peft"),
    "bitsandbytes": ("QLoRA (4-bit base), on a GPU", "bitsandbytes"),
    "vllm": ("faster rollouts, on a GPU", "vllm"),
    "faiss": ("vector memory", "faiss-cpu"),
}
"""What a package is good for, and what to install."""
_NEEDED = ("torch", "transformers", "trl", "accelerate")
_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")
_LEAST_MEMORY, _LEAST_DISK, _LEAST_SHARED = 2 * GIB, 5 * GIB, 1 * GIB


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    here: bool
    """Whether it is available."""
    detail: str
    use: str
    """What it is good for."""
    advice: str = ""
    """What to do where it is not available."""


def examine() -> list[Finding]:
    """All findings, in the order a person reads them."""
    found = [_python(), *map(package, PACKAGES), *_torch(), _processor(), *_compilers()]
    return [*found, _memory(), *_disks(), models(Path("models"))]


def package(name: str) -> Finding:
    """Whether a package is installed, in which version; it is not imported."""
    use, install = PACKAGES[name]
    candidates = (install, name, f"{name}-gpu")
    versions = [v for v in map(_version, candidates) if v]
    if not versions:
        return Finding(
            name, False, "not installed", use, f"pip install -c constraints.txt {install}"
        )
    if name == "trl" and not versions[0].startswith("1.12"):
        return Finding(name, False, versions[0], use, 'pip install "trl>=1.12,<1.13"')
    return Finding(name, True, versions[0], use)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    here = sys.version_info >= (3, 11)
    return Finding("python", here, platform.python_version(), "everything", "use 3.11 or newer")


def _torch() -> Iterator[Finding]:
    """GPUs, and how processes can talk."""
    try:
        import torch
        from torch import distributed
    except ImportError:
        return
    yield _gpus(torch)
    gpu_use = "bf16 training on a GPU"
    if torch.cuda.is_available():
        good = torch.cuda.is_bf16_supported()
        yield Finding(
            "GPU bf16", good, "yes" if good else "no", gpu_use, "set model.dtype: float32"
        )
    for name, use in (("nccl", "several GPUs"), ("gloo", "several processes on CPUs")):
        here = distributed.is_available() and getattr(distributed, f"is_{name}_available")()
        advice = "install a torch built with CUDA" if name == "nccl" else "install another torch"
        yield Finding(name, here, "built in" if here else "not in this torch", use, advice)


def _gpus(torch: Any) -> Finding:
    use = "models above about 0.5B"
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        advice = (
            "check the driver (nvidia-smi)"
            if built
            else "install a torch built with CUDA where there is a GPU"
        )
        return Finding("GPU", False, "none that torch can use", use, advice)
    names = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        names.append(f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free")
    return Finding("GPU", True, "; ".join(names), use)


def bf16_instructions(file: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The CPU's instructions for bf16, without which it is slow there; none where unknown."""
    flags = set(file.read_text("utf-8", "replace").split()) if file.is_file() else set()
    return [flag for flag in _BF16_FLAGS if flag in flags]


def _processor() -> Finding:
    found = bf16_instructions()
    detail = f"{os.cpu_count()} cores, {', '.join(found) or 'no bf16 instructions known'}"
    advice = "keep model.dtype float32 (or auto) on this CPU"
    return Finding("CPU bf16", bool(found), detail, "bf16 training on CPUs", advice)


def _compilers() -> Iterator[Finding]:
    from ctypes.util import find_library

    compiler = shutil.which("g++") or shutil.which("c++")
    use = "DeepSpeed's CPU optimizer (offload)"
    yield Finding("C++ compiler", bool(compiler), compiler or "none", use, "install g++")
    library = find_library("aio")
    use = "ZeRO-3 with NVMe offload"
    yield Finding("libaio", bool(library), library or "none", use, "install libaio-dev")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    enough = memory.available >= _LEAST_MEMORY
    return Finding("memory", enough, detail, "aac plan says how much", "end other programs")


def _disks() -> Iterator[Finding]:
    for name, place, least, use in (
        ("disk", Path.cwd(), _LEAST_DISK, "run folders and checkpoints"),
        ("shared memory", Path("/dev/shm"), _LEAST_SHARED, "nccl between processes"),
    ):
        if not place.is_dir():
            continue
        usage = shutil.disk_usage(place)
        detail = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free in {place}"
        advice = "free some" if name == "disk" else "raise it (docker run --shm-size=8g)"
        yield Finding(name, usage.free >= least, detail, use, advice)


def models(folder: Path) -> Finding:
    """Models a person keeps in the folder that git ignores."""
    held = sorted(p.parent.name for p in folder.glob("*/config.json"))
    detail = ", ".join(held) or ("empty" if folder.is_dir() else f"no folder {folder}/ here")
    advice = f"make models, or put a Hugging Face folder into {folder}/ and name it as model.actor"
    return Finding("models/", bool(held), detail, "real pretrained actors", advice)


def needed(findings: list[Finding]) -> list[str]:
    """Names of what is missing and nothing works without."""
    return [f.name for f in findings if not f.here and f.name in ("python", *_NEEDED)]
