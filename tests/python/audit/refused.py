"""Overloads that are not called, each with its reason."""

REFUSED: dict[str, str] = {}
