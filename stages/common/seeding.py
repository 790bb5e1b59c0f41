"""Random numbers keyed by what they are for, so that no order of events changes them."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np

from stages.common.allocator import keep_freed


def keyed_generator(*key: int) -> np.random.Generator:
    """A generator that depends on ``key`` alone, e.g. (seed, iteration, episode, turn).

    Keys of different length differ too: (1,) and (1, 0) are unrelated, which numpy's own
    SeedSequence does not promise (it pads with zeros).
    """
    text = ",".join(str(int(part)) for part in key)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def derived_seed(*key: int) -> int:
    """A seed below 2**31 for a library that takes one integer."""
    return int(keyed_generator(*key).integers(2**31))


def seed_everything(seed: int) -> None:
    """Seed Python, numpy's global state and torch, for libraries that use those."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """Where this process's global generators stand: tensors and plain values."""
    import torch

    version, numbers, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, [int(key) for key in keys], *rest],
        "torch": torch.get_rng_state(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def restore_random_states(states: dict[str, Any]) -> None:
    """Inverse of ``random_states``."""
    import torch

    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def set_threads(threads: int | None) -> None:
    """Let torch use this many CPU threads (None leaves its default, all cores), and have the
    memory that it frees kept for its next step."""
    keep_freed()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
