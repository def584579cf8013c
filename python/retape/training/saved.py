"""All that a run needs to go on as if nothing had happened, in one file: parameters, AdamW's
moments and steps, the generator's state, where it is in the text, and the settings it depends on."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from retape.training.settings import Refused

FORMAT = "retape-train/1"
NAME = "run.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_DTYPES = {torch.float32: "F32", torch.uint8: "U8"}


class _OtherSettings(Refused):
    pass


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW with its state in place, so that it can be saved and loaded before any step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    return optimizer


class SavedRun:
    def __init__(
        self, out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, about: dict[str, str]
    ) -> None:
        self.path = out / NAME
        self._beside = out / f"{NAME}.tmp"
        self._model = model
        self._optimizer = optimizer
        self._settings = about

    def save(self, step: int, position: int, policy: str, alphabet: bytes) -> None:
        """At every moment the file is what it was before or what it is after, on the disk too."""
        metadata = {
            **self._settings,
            "format": FORMAT,
            "policy": policy,
            "step": str(step),
            "position": str(position),  # windows of the text drawn so far
            "torch": torch.__version__.split("+")[0],
        }
        tensors = dict(self._tensors())
        tensors["generator"] = torch.get_rng_state()
        tensors["alphabet"] = torch.tensor(list(alphabet), dtype=torch.uint8)
        beside = self._beside
        try:
            _write(beside, tensors, metadata, lambda: _kill_if_told("half-written", step))
            _sync(beside, os.O_RDWR)
            _kill_if_told("before-rename", step)
            beside.rename(self.path)
            _kill_if_told("after-rename", step)
            _sync(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Refused(f"cannot write {beside} ({_reason(error)})") from None

    def remove_half_saved(self) -> None:
        """What a run that was killed within a save may have left. Only for who has the lock of the
        folder."""
        with contextlib.suppress(OSError):  # the next save writes over it
            self._beside.unlink()

    def load(self) -> int:
        """The step it was saved after."""
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                self._check(metadata)
                known = set(file.keys())
                for name, tensor in self._tensors():
                    tensor.copy_(_read(file, known, name, tensor))
                _set_generator(_read(file, known, "generator", torch.get_rng_state()))
                return int(metadata["step"])
        except _OtherSettings:
            raise
        except (OSError, ValueError, SafetensorError, Refused) as error:
            raise Refused(
                f"{self.path} is not a whole saved run: {_reason(error)}. "
                "Fix: another --out, or remove it"
            ) from None

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors of the model and the optimizer; they are the live ones."""
        for name, parameter in self._model.named_parameters():
            yield f"model.{name}", parameter.detach()
            for moment in _MOMENTS:
                yield f"adamw.{moment}.{name}", self._optimizer.state[parameter][moment]

    def _check(self, saved: dict[str, str]) -> None:
        if saved.get("format") != FORMAT:
            raise Refused("it is a safetensors file of something else")
        differences = ", ".join(
            f"--{name} (saved {saved.get(name, 'nothing')}, now {value})"
            for name, value in sorted(self._settings.items())
            if saved.get(name) != value
        )
        if differences:
            raise _OtherSettings(
                f"cannot resume {self.path} with other settings: {differences}. "
                "Fix: the settings it was saved with, or another --out"
            )
        if not saved.get("step", "").isdigit():
            raise Refused("it does not say at which step it was saved")


def _read(file: safe_open, known: set[str], name: str, like: Tensor) -> Tensor:
    if name not in known:
        raise Refused(f"there is no tensor {name} in it")
    found = file.get_tensor(name)
    if found.dtype != like.dtype or found.shape != like.shape:
        raise Refused(f"tensor {name} has another type or shape")
    return found


def _set_generator(state: Tensor) -> None:
    try:
        torch.set_rng_state(state)
    except RuntimeError as error:
        raise Refused(
            f"tensor generator has no state of one ({str(error).splitlines()[0]})"
        ) from None


def _write(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], half_way: Callable[[], None]
) -> None:
    """As safetensors' `save_file`, which would leave a file of a name that nobody knows where it is killed, and end
    the process where memory for its buffer is short. Tensors go to the file from where they are."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        about = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**about, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        _write_all(file, len(text).to_bytes(8, "little") + text)
        for number, tensor in enumerate(tensors.values()):
            if number == len(tensors) // 2:
                half_way()
            _write_all(file, memoryview(tensor.contiguous().view(-1).numpy()).cast("B"))


def _write_all(file: io.RawIOBase, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kill_if_told(moment: str, step: int) -> None:
    """For tests, which cannot hit such a moment from outside: with RETAPE_TRAIN_KILL=before-rename:30
    in the environment the process is killed at that moment of the save of step 30."""
    if os.environ.get("RETAPE_TRAIN_KILL") == f"{moment}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one run at a time writes to a folder. The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(f"--out: cannot make the folder {folder} ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Refused(f"--out: another run is writing to {folder}. Fix: another --out") from None
    try:
        yield
    finally:
        os.close(descriptor)
