"""The text to learn from, and the windows of it that a step sees.

A step's windows depend only on the seed and on the number of windows drawn before, so a resumed run
sees what the uninterrupted run would have seen.
"""

import torch

_64 = (1 << 64) - 1
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"
_VOWELS = "aeiou"


def mix(number: int) -> int:
    """A well-mixed 64-bit number from another (splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _64
    return number ^ (number >> 31)


def tiny_corpus() -> bytes:
    """About 33,000 characters of made-up sentences: "Xapa nipa du, 78 ojero."."""
    lines = []
    for line in range(1500):
        a, b, c, d = (_word(mix(5 * line + i)) for i in range(4))
        lines.append(f"{a.capitalize()} {b} {c}, {mix(5 * line + 4) % 100} {d}.\n")
    return "".join(lines).encode()


def _word(number: int) -> str:
    """One of a few hundred: a vowel or none, then one or two syllables."""
    word = _VOWELS[number % 5] if number % 3 == 0 else ""
    for _ in range(1 + number % 2):
        number >>= 8
        word += _CONSONANTS[number % 21] + _VOWELS[number % 5]
    return word


class Text:
    """A text of bytes. Each byte that occurs is a character of the alphabet."""

    def __init__(self, content: bytes) -> None:
        self.alphabet = bytes(sorted(set(content)))
        self.digest = digest(content)
        lookup = torch.zeros(256, dtype=torch.uint8)
        lookup[list(self.alphabet)] = torch.arange(len(self.alphabet), dtype=torch.uint8)
        self._ids = lookup[torch.frombuffer(bytearray(content), dtype=torch.uint8).long()]

    def batch(self, seed: int, position: int, batch: int, context: int) -> torch.Tensor:
        """Ids of `batch` windows from number `position` on, one column longer than the context."""
        last = len(self._ids) - context
        starts = [mix(mix(seed) + position + row) % last for row in range(batch)]
        return torch.stack([self._ids[start : start + context + 1] for start in starts]).long()


def digest(content: bytes) -> str:
    """Identifies a text: 64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in content:
        value = ((value ^ byte) * 0x100000001B3) & _64
    return f"{value:016x}"
