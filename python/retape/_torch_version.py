"""Retape's extension reads torch's internals: it works with the minor version it was built for."""

from importlib.metadata import PackageNotFoundError, version

NEEDED = "2.13"


def check(found: str | None = None) -> None:
    """Raise ImportError, with what was expected and what is there, before anything can crash."""
    if found is None:
        try:
            found = version("torch")
        except PackageNotFoundError:
            raise ImportError(
                f"[retape] torch is not installed: expected torch {NEEDED}. "
                f"Fix: pip install torch=={NEEDED}.0"
            ) from None
    if found.split("+")[0].split(".")[:2] != NEEDED.split("."):
        raise ImportError(
            f"[retape] built for another torch: expected {NEEDED}, got {found}. "
            f"Fix: pip install torch=={NEEDED}.0, or build Retape again for yours."
        )
