"""Characters of a text as ids, and which windows of it a step sees.

A step's windows depend on the seed and on how many windows were drawn before it, on nothing else:
a run that goes on after a break sees what it would have seen.
"""

from __future__ import annotations

import torch

_64 = (1 << 64) - 1


def mix(number: int) -> int:
    """A well mixed 64-bit number from another (splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _64
    return number ^ (number >> 31)


class Text:
    """A text of bytes; each byte that occurs is a character."""

    def __init__(self, content: bytes) -> None:
        self.alphabet = bytes(sorted(set(content)))
        # The ids are a tensor from the start: a Python list of them would be ten times as large.
        lookup = torch.zeros(256, dtype=torch.uint8)
        lookup[list(self.alphabet)] = torch.arange(len(self.alphabet), dtype=torch.uint8)
        self._ids = lookup[torch.frombuffer(bytearray(content), dtype=torch.uint8).long()]
        self.digest = digest(content)

    def __len__(self) -> int:
        return len(self._ids)

    def batch(self, seed: int, position: int, batch: int, context: int) -> torch.Tensor:
        """Ids of windows number `position` and on, one column longer than the context."""
        rows = []
        for window in range(position, position + batch):
            start = mix(mix(seed) + window) % (len(self) - context)
            rows.append(self._ids[start : start + context + 1])
        return torch.stack(rows).long()


def digest(content: bytes) -> str:
    """To tell texts apart: 64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in content:
        value = ((value ^ byte) * 0x100000001B3) & _64
    return f"{value:016x}"
