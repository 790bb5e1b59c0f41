"""Random numbers keyed by what they are for, so that no order of events changes them."""

from __future__ import annotations

import hashlib
import random

import numpy as np


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


def set_threads(threads: int | None) -> None:
    """Let torch use this many CPU threads; None leaves its default (all cores)."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
