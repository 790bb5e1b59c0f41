"""Products by oneDNN against float64, and layers that stay what they were."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stages.common import gemm

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"),
    reason="torch was built without oneDNN",
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7)])
@pytest.mark.parametrize("width", [4, 11])
def test_products_and_gradients_are_those_of_float64(
    shape: tuple[int, ...], width: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator, requires_grad=True)
    w = torch.randn(width, 7, generator=generator, requires_grad=True)
    b = torch.randn(width, generator=generator, requires_grad=True) if bias else None
    leaves = [x, w] if b is None else [x, w, b]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    weigh = torch.randn(*shape[:-1], width, generator=generator)
    found, expected = gemm.linear(*leaves), nn.functional.linear(*exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    (found * weigh).sum().backward()
    (expected * weigh).sum().backward()
    for leaf, true in zip(leaves, exact, strict=True):
        torch.testing.assert_close(leaf.grad.double(), true.grad, rtol=1e-5, atol=1e-5)


def test_a_frozen_weight_gets_no_gradient() -> None:
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6)
    gemm.linear(x, w).sum().backward()
    assert w.grad is None
    torch.testing.assert_close(x.grad, w.sum(0).expand(4, 6))


def test_layers_are_made_quick_and_plain_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "is_quicker", lambda: True)
    monkeypatch.setattr(gemm, "LEAST", 0)

    class Special(nn.Linear):
        """Somebody else's layer."""

    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), Special(5, 3))
    before, x = copy.deepcopy(model), torch.randn(4, 6)
    gemm.quicken(model)
    assert [type(m) for m in model] == [gemm.QuickLinear, nn.ReLU, Special]
    assert model.state_dict().keys() == before.state_dict().keys()
    torch.testing.assert_close(model(x), before(x))
    half = copy.deepcopy(model).bfloat16()
    torch.testing.assert_close(half(x.bfloat16()), copy.deepcopy(before).bfloat16()(x.bfloat16()))
    assert [type(m) for m in gemm.plain(model)] == [type(m) for m in before]


@pytest.mark.parametrize("asked", [False, True])
def test_freed_memory_is_kept_unless_the_user_sets_the_allocator(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.common import allocator

    called: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: called.append(given))
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library)
    for name in [n for n in allocator.os.environ if n.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    if asked:
        monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    allocator.keep_freed()
    assert len(called) == (0 if asked else 2)
    allocator.keep_less(allocator.LARGE_MODEL - 1)
    assert len(called) == (0 if asked else 2)
    allocator.keep_less(allocator.LARGE_MODEL)
    assert len(called) == (0 if asked else 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
@pytest.mark.parametrize(("weights", "least", "most"), [(10**8, 70, 90), (10**6, -1, 1)])
def test_who_loads_a_large_model_gives_moderate_blocks_back(
    weights: int, least: float, most: float
) -> None:
    program = f"""
from stages.common import allocator

def resident():
    return allocator._private() / allocator.MIB

allocator.keep_freed()
allocator.keep_less({weights})
blocks, pins = [], []
for _ in range(20):
    blocks.append(bytearray(8 * allocator.MIB))
    pins.append(bytearray(1000))
before = resident()
del blocks[::2]
print(before - resident())
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert least < float(done.stdout) < most


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
def test_holes_in_the_heap_are_given_back() -> None:
    program = """
import resource
from stages.common import allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / allocator.MIB

allocator.KEPT = 8 * allocator.MIB
allocator.keep_freed()
blocks = [bytearray(allocator.MIB) for _ in range(100)]
pins = [bytearray(1000) for _ in range(100)]
del blocks[::2]
before = resident()
allocator.give_back()
between = resident()
allocator.give_back()  # nothing is left to give
print(before - between, abs(between - resident()))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    given, again = map(float, done.stdout.split())
    assert given > 40 and again < 1


@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_threads_soon_sleep_unless_the_user_says_how_they_wait(own: dict[str, str]) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in names} | own
    said = "import stages, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", said]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = own.get("GOMP_SPINCOUNT", "None" if own else "1000")
    assert done.stdout.strip() == expected
