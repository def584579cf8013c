"""Exact bytes of tensor memory.

with retape.memory.Meter() as m:
    loss = model(batch)
    loss.backward()
print(m.peak, m.held)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch

from retape import _C
from retape._C import MemoryEvent

__all__ = ["Dry", "Flops", "MemoryEvent", "Meter", "region"]


class Meter:
    """Counts the bytes of CPU tensors that were allocated since it was opened, on all threads.

    current: live now. peak: the most there were. held: live when the last backward began (before
    any backward: live now). Numbers stay readable after the `with` block.

    device: another one than the CPU reads that device's caching allocator (no timeline there).
    """

    def __init__(self, timeline: bool = False, device: torch.device | str = "cpu") -> None:
        self._record_timeline = timeline
        self._device = torch.device(device)
        self._meter: _C.MemoryMeter | None = None

    def __enter__(self) -> Self:
        self._meter = _C.MemoryMeter(self._record_timeline, self._device)
        return self

    def __exit__(self, *_: object) -> None:
        self._open().close()

    def _open(self) -> _C.MemoryMeter:
        if self._meter is None:
            raise _C.UsageError("[memory.Meter] not opened. Fix: use it in a `with` statement.")
        return self._meter

    @property
    def current(self) -> int:
        return self._open().current

    @property
    def peak(self) -> int:
        return self._open().peak

    @property
    def held(self) -> int:
        return self._open().held

    @property
    def timeline(self) -> list[MemoryEvent]:
        """Every allocation and free, in order, with the op it was for (`timeline=True`)."""
        return self._open().timeline

    def reset_peak(self) -> None:
        self._open().reset_peak()


class Dry:
    """While it is open, ops on this thread allocate what they return and compute nothing.

        with retape.memory.Dry(), retape.memory.Meter() as m:
            model(batch).square().mean().backward()
        print(m.peak)  # had it been computed

    What ops return is garbage; so is what the step did to buffers. Scratch that a kernel takes inside
    is not counted. Code that looks at values may go astray.
    """

    def __init__(self) -> None:
        self.flops = 0  # that were not computed; known at the end. What counts, `Flops` says
        self._run: _C.DryRun | None = None

    def __enter__(self) -> Self:
        self._run = _C.DryRun()
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self.flops = self._run.flops
        self._run = None


class Flops:
    """Counts floating-point operations on this thread, in backward too, while all runs as ever.

        with retape.memory.Flops() as count:
            model(batch).square().mean().backward()
        print(count.flops)

    Of matrix products (mm, addmm, bmm, baddbmm), convolutions and fused attention, replayed ones too.
    """

    def __init__(self) -> None:
        self.flops = 0  # known at the end
        self._counter: _C.FlopCounter | None = None

    def __enter__(self) -> Self:
        self._counter = _C.FlopCounter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._counter is not None:
            self.flops = self._counter.flops
        self._counter = None


@contextmanager
def region(name: str) -> Iterator[None]:
    """A name, in timelines, for what is allocated in it; for gradients of it and for what backward
    runs again of it, too.

        with retape.memory.region("layers.3"):
            x = layer(x)
    """
    here = _C.MemoryRegion(name)
    try:
        yield
    finally:
        del here
