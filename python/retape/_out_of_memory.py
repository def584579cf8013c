"""Whether an error means that memory ran out."""

from __future__ import annotations

_TEXTS = (  # of torch's allocator, of its operators, of oneDNN
    "can't allocate memory",
    "not enough memory",
    "could not create a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )
