"""Saves a run so that it can be killed at any moment and resumed with the same bits.

One safetensors file holds parameters, AdamW's moments and steps, the generator's state, the
alphabet, and as metadata the step and the settings.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

FORMAT = "retape-train/1"


class Refused(Exception):
    """The run cannot start or continue. The message says why and names a fix."""


class Incomplete(Exception):
    """The file is not a complete saved run."""


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW with its state in place, so that it can be saved and loaded before the first step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def shortest(number: float) -> str:
    """The fewest digits that read back as the same number, as C++ prints them."""
    return str(number).removesuffix(".0")


class SavedRun:
    def __init__(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.AdamW, settings: dict[str, str]
    ) -> None:
        self.path = folder / "run.safetensors"
        self._beside = folder / "run.safetensors.tmp"
        self._settings = settings
        self._tensors: dict[str, Tensor] = {}  # the live ones
        for name, parameter in model.named_parameters():
            self._tensors[f"model.{name}"] = parameter.detach()
            for key, state in optimizer.state[parameter].items():
                self._tensors[f"adamw.{key}.{name}"] = state

    def save(self, step: int, alphabet: bytes, about: dict[str, str]) -> None:
        """At every moment the file, also on disk, is the old save or the new one."""
        metadata = {**self._settings, **about, "format": FORMAT, "step": str(step)}
        tensors = {
            **self._tensors,
            "generator": torch.get_rng_state(),
            "alphabet": torch.tensor(list(alphabet), dtype=torch.uint8),
        }
        # safetensors aborts the process when memory is short: fail here instead, as torch does.
        torch.empty(2 * sum(tensor.nbytes for tensor in tensors.values()), dtype=torch.uint8)
        try:
            with self._beside.open("wb") as file:
                file.write(save(tensors, metadata))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._beside, self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise Refused(f"cannot write {self._beside} ({error.strerror})") from None

    def remove_half_saved(self) -> None:
        """Removes what a run killed while saving left behind. Call it with the folder locked."""
        self._beside.unlink(missing_ok=True)

    def load(self) -> int:
        """Returns the step after which the run was saved."""
        try:
            with safe_open(self.path, framework="pt") as file:
                step = self._check(file.metadata() or {})
                names = set(file.keys())
                like = {**self._tensors, "generator": torch.get_rng_state()}
                for name, into in like.items():
                    if name not in names:
                        raise Incomplete(f"there is no tensor {name} in it")
                    found = file.get_tensor(name)
                    if found.dtype != into.dtype or found.shape != into.shape:
                        raise Incomplete(f"tensor {name} has another type or shape")
                    into.copy_(found)
                torch.set_rng_state(like["generator"])
                return step
        except (OSError, RuntimeError, SafetensorError, Incomplete) as error:
            raise Refused(
                f"{self.path} is not a whole saved run: {str(error).splitlines()[0]}. "
                "Fix: another --out, or remove it"
            ) from None

    def _check(self, saved: dict[str, str]) -> int:
        if saved.get("format") != FORMAT:
            raise Incomplete("it is a safetensors file of something else")
        differences = ", ".join(
            f"--{name} (saved {saved.get(name, 'nothing')}, now {value})"
            for name, value in sorted(self._settings.items())
            if saved.get(name) != value
        )
        if differences:
            raise Refused(
                f"cannot resume {self.path} with other settings: {differences}. "
                "Fix: the settings it was saved with, or another --out"
            )
        if not saved.get("step", "").isdigit():
            raise Incomplete("it does not contain the step")
        return int(saved["step"])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One run at a time writes to a folder. The lock ends with the process, even if killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(f"--out: cannot make the folder {folder} ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused(f"--out: another run is writing to {folder}. Fix: another --out") from None
    finally:
        os.close(descriptor)
