"""A hard limit on the memory of the process (Linux).

RLIMIT_DATA limits private writable memory: the heap and anonymous mappings, which hold tensors,
gradients and scratch. What the process has already does not count. RLIMIT_AS would count every
mapped library as well.
"""

import contextlib
import ctypes
import re
import resource
from collections.abc import Iterator
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_MESSAGES = (  # of torch's allocator, of torch's operators, of oneDNN
    "can't allocate memory",
    "not enough memory",
    "could not create a primitive",
)


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """No limit for None. The limit ends with the block, so that an error can be reported."""
    if limit is None:
        yield
        return
    # Large tensors get mappings of their own, which free() returns to the system. Without this,
    # holes in the heap would count.
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
    libc.mallopt(_M_TRIM_THRESHOLD, 256 * 1024)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = int(re.search(r"^VmData:\s*(\d+) kB$", status, re.MULTILINE)[1]) * 1024
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _MESSAGES)
