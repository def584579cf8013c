"""A hard limit on the memory of the process.

RLIMIT_DATA limits private writable memory: the heap and anonymous mappings, which is where tensors,
gradients and scratch are. What the process has of it already (Python, torch's own data, stacks) does
not count: the limit begins here. RLIMIT_AS would count every mapped library as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from retape._text import KIB
from retape.training.settings import Refused

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def private_writable_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        status = ""
    found = re.search(r"^VmData:\s*(\d+) kB$", status, re.MULTILINE)
    if not found:
        raise Refused("--memory-limit: needs /proc/self/status, which this system does not have")
    return int(found[1]) * KIB


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """None: it is not. Afterwards, what tells of the end has memory again."""
    if limit is None:
        yield
        return
    # Tensors in mappings of their own, given back when they die: what counts is then what is in
    # use, not the holes that it leaves in the heap.
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 256 * KIB)
    libc.mallopt(_M_TRIM_THRESHOLD, 256 * KIB)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (private_writable_bytes() + limit, before[1]))
    except (OSError, ValueError) as error:
        raise Refused(f"--memory-limit: cannot set a limit ({error})") from None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "could not create a primitive",
)  # the last is oneDNN's


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )
