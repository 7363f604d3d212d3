"""A computation's floor: its operations and bytes, counted from shapes, at the best rates measured on a machine.

Those rates are the *ceilings*; the time that they leave is the *floor*.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Ceilings", "Work", "measure_ceilings", "work_of"]

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_ATTENTION = "aten::_scaled_dot_product"


class Work(NamedTuple):
    """Operations (a multiply-add counts two) and bytes of operands read and written, by matrix products."""

    operations: int
    bytes: int


class Ceilings(NamedTuple):
    """Fastest matrix product seen, in operations a second, and fastest copy, in bytes moved a second.

    ``matmul_cpu`` counts a product's operations by CPU second, of all threads: other programs disturb it less.
    """

    matmul: float
    copy: float
    matmul_cpu: float = float("nan")

    def floor(self, work: Work) -> float:
        """Seconds that some work takes at these rates: its operations or its bytes, whichever take longer."""
        return max(work.operations / self.matmul, work.bytes / self.copy)


def measure_ceilings(device: torch.device, *, size: int | None = None, repeats: int = 5) -> Ceilings:
    """Time fp32 products of square matrices and copies of 64 MiB, and keep the best.

    Parameters
    ----------
    device : torch.device
        Where.
    size : int or None
        Rows of the matrices; None: 1024, on a GPU 4096, from where on products run at full rate.
    repeats : int
        Tries of each.
    """
    size = size or (4096 if device.type == "cuda" else 1024)
    a = torch.ones(size, size, device=device)
    source = torch.ones(1 << 24, device=device)
    target = torch.empty_like(source)
    products = [_timed(lambda: a @ a, device) for _ in range(repeats)]
    copies = [_timed(lambda: target.copy_(source), device) for _ in range(repeats)]
    wall, cpu = (min(each) for each in zip(*products, strict=True))
    return Ceilings(2 * size**3 / wall, 2 * source.nbytes / min(copies)[0], 2 * size**3 / cpu)


def _timed(work: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def work_of(run: Callable[[], Any]) -> Work:
    """Count the matrix products and fused attentions of a run from the shapes of their operands.

    Everything else, norms and softmaxes and copies, counts nothing, so a run takes longer than its floor.
    Fused attention counts every column it is given, those its mask hides included.
    """
    counter = _Counter()
    with counter:
        run()
    return Work(counter.operations, counter.bytes)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name in _PRODUCTS:
            *_, left, right = [a for a in args if isinstance(a, Tensor)]
            self.operations += 2 * left.numel() * right.shape[-1]
            self._move(*args, out)
        elif name.startswith(_ATTENTION) and "backward" not in name:
            q, key, value = args[:3]
            columns = q.numel() // q.shape[-1] * key.shape[-2]
            self.operations += 2 * columns * (q.shape[-1] + value.shape[-1])
            self._move(q, key, value, out[0])
        return out

    def _move(self, *tensors: Any) -> None:
        self.bytes += sum(t.nbytes for t in tensors if isinstance(t, Tensor))
