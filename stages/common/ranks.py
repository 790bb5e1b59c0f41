"""The processes that train together, as one small object that is the identity for one process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is, and how they put things together.

    What is random is keyed by what it is for, never by the rank, so the union of all shares is
    what one process would have made.
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """The one process that writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> list[int]:
        """The numbers of 0 … count − 1 that are this process's: every size-th one."""
        return list(range(self.rank, count, self.size))

    def gather(self, mine: Sequence[T]) -> list[T]:
        """Everybody's items in the order of the numbers that ``share`` gave out."""
        parts = self.everyone(list(mine))
        most = max(map(len, parts))
        return [part[i] for i in range(most) for part in parts if i < len(part)]

    def everyone(self, mine: T) -> list[T]:
        """One object of each process, by rank."""
        if self.size == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found

    def anyone(self, busy: bool) -> bool:
        """Whether it is true of any process."""
        if self.size == 1:
            return busy
        import torch
        import torch.distributed as dist

        flag = torch.tensor(int(busy), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

    def align(self, state: Any) -> None:
        """Every tensor in nested dictionaries and lists becomes, in place, the main process's.

        What all processes compute alike (the critic) must not drift apart by rounding.
        """
        if self.size > 1:
            for tensor in _tensors(state):
                _broadcast(tensor)

    def wait(self) -> None:
        """Until all are here."""
        self.everyone(None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through the block before the others enter it."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()


ALONE = Ranks()


def _tensors(state: Any) -> Iterator[Any]:
    import torch

    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _broadcast(tensor: Any) -> None:
    import torch.distributed as dist

    there = tensor.cuda() if dist.get_backend() == "nccl" and not tensor.is_cuda else tensor
    dist.broadcast(there, src=0)
    if there is not tensor:
        tensor.copy_(there)


def launched() -> bool:
    """Whether a launcher started this process as one of several (or as the only one)."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def own_rank() -> int:
    """This process's number before it has met the others; 0 for one process."""
    return int(os.environ.get("RANK", "0")) if launched() else 0


def world_size() -> int:
    """How many processes were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1")) if launched() else 1
