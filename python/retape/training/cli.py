"""`retape train`: a character-level transformer on a text, with Retape around the forward pass.

After any end, `--resume` goes on from the last save with the losses of a run that never ended.
`examples/cpp/train_gpt.cpp` is the same in C++: the same options, files and losses.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape._gpt import GPT, Size
from retape._numbers import INT64, LAYERS, SIZE, THREADS, whole_number
from retape._text import Exit, format_bytes
from retape.training import harbour
from retape.training.data import Text
from retape.training.limit import is_out_of_memory, limited
from retape.training.progress import Shown, Totals
from retape.training.saved import SavedRun, locked, make_optimizer
from retape.training.settings import (
    Refused,
    real_number,
    settings,
    size_in_bytes,
)

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = "none"
_COUNTS = {  # by default, at least and at most
    "layers": (4, 1, LAYERS, "blocks of the transformer"),
    "width": (64, 1, SIZE, "of the residual stream"),
    "heads": (4, 1, SIZE, "of attention"),
    "context": (64, 1, SIZE, "characters that the model sees"),
    "batch": (8, 1, SIZE, "windows in a step"),
    "steps": (100, 1, INT64, "to train, from the very start"),
    "seed": (0, 0, INT64, "of weights, dropout and the order of the text"),
    "threads": (1, 1, THREADS, "of torch; another number may round otherwise"),
    "save-every": (10, 0, INT64, "steps between saves, 0: at the end only"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        choices=[PLAIN, "cheap", "full"],
        default="full",
        help="none: plain autograd; cheap: what is cheap is replayed, no product of matrices; "
        "full: all is (full)",
    )
    for name, (default, least, most, what) in _COUNTS.items():
        parser.add_argument(
            f"--{name}",
            metavar="N",
            type=whole_number(least, most),
            default=default,
            help=f"{what} ({default})",
        )
    parser.add_argument(
        "--dropout",
        metavar="P",
        type=real_number(True, 1),
        default=0.1,
        help="share of values that are dropped out (0.1)",
    )
    parser.add_argument(
        "--lr",
        metavar="RATE",
        type=real_number(False, 10),
        default=1e-3,
        help="AdamW's learning rate (0.001)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="to learn from (a year in a harbour, written for it)",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        default="build/train",
        help="where the run is saved (build/train)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that is saved in FOLDER; from the start if none is",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="BYTES",
        type=size_in_bytes,
        help="hard limit on what the process may allocate: 256MiB (none)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


class Training:
    def __init__(self, args: argparse.Namespace, text: Text) -> None:
        self.args = args
        self.text = text
        self.totals = Totals(args.steps)
        self.first_step = self.saved_step = 0
        self.parameters = 0
        self.losses: list[float] = []

    def run(self) -> None:
        with retape.memory.Meter() as meter:  # before the model: parameters and moments count
            self._make_model()
            shown = Shown(self.args.quiet, self.totals)
            self._resume(shown)
            with shown:
                while self.totals.step < self.args.steps:
                    self._step()
                    self.totals.peak_bytes = meter.peak
                    shown.step()
                    self._save_if_it_is_time()

    def _make_model(self) -> None:
        args = self.args
        size = Size(args.layers, args.heads, args.width, args.context, args.batch, args.dropout)
        torch.manual_seed(args.seed)
        self.model = GPT(len(self.text.alphabet), size)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = make_optimizer(self.model, args.lr)
        about = settings(args, self.text)
        self.saved = SavedRun(Path(args.out), self.model, self.optimizer, about)

    def _resume(self, shown: Shown) -> None:
        if self.args.resume and self.saved.path.exists():
            self.totals.step = self.first_step = self.saved_step = self.saved.load()
            shown.note(f"Going on after step {self.first_step}.")
        elif self.args.resume:
            shown.note(f"No saved run in {self.args.out}: from the start.")
        elif self.saved.path.exists():
            raise Refused(
                f"--out: there is a saved run in {self.args.out}. Fix: --resume, or another --out"
            )
        self.saved.remove_half_saved()

    def _save_if_it_is_time(self) -> None:
        args, step = self.args, self.totals.step
        if step == args.steps or (args.save_every and step % args.save_every == 0):
            self.saved.save(step, step * args.batch, args.policy, self.text.alphabet)
            self.saved_step = step

    def _step(self) -> None:
        args, totals = self.args, self.totals
        start = time.perf_counter()
        position = totals.step * args.batch
        ids = self.text.batch(args.seed, position, args.batch, args.context)
        self.optimizer.zero_grad(set_to_none=True)
        loss, replay_seconds = self._forward_and_backward(ids)
        self.optimizer.step()
        totals.step += 1
        totals.loss = loss.item()
        totals.seconds += time.perf_counter() - start
        totals.replay_seconds += replay_seconds
        totals.tokens += args.batch * args.context
        self.losses.append(float(f"{totals.loss:.9g}"))
        if not math.isfinite(totals.loss):
            raise Refused(f"step {totals.step}: the loss is not finite. Fix: a smaller --lr")

    def _forward_and_backward(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        if self.args.policy == PLAIN:
            loss = self.model(ids)
            loss.backward()
            return loss.detach(), 0.0
        with retape.recompute(self.args.policy, name="gpt", timed=True) as scope:
            loss = self.model(ids)
        loss.backward()
        return loss.detach(), scope.stats.replay_ns * 1e-9

    def result(self, error: str | None = None) -> dict[str, Any]:
        totals = self.totals
        return {
            "parameters": self.parameters,
            "first_step": self.first_step,
            "step": totals.step,
            "losses": self.losses,
            "seconds": round(totals.seconds, 3),
            "tokens_per_second": round(totals.tokens_per_second, 1),
            "peak_bytes": totals.peak_bytes,
            "replay_share": round(totals.replay_share, 4),
            "error": error,
        }


def summary(result: dict[str, Any], policy: str) -> str:
    if not result["losses"]:
        return f"Nothing to do: the saved run is at step {result['step']}."
    return (
        f"{len(result['losses'])} steps of {result['parameters']} parameters, policy {policy}: "
        f"loss {result['losses'][0]:.3f} to {result['losses'][-1]:.3f}, "
        f"{result['tokens_per_second']:.0f} tokens/s, peak {format_bytes(result['peak_bytes'])}, "
        f"{100 * result['replay_share']:.1f} % of the time in replay."
    )


def out_of_memory(args: argparse.Namespace, step: int) -> str:
    text = f"out of memory at step {step}"
    if args.memory_limit:
        text += f": --memory-limit is {format_bytes(args.memory_limit)}"
    return text


def interrupted(training: Training) -> str:
    done, saved = training.totals.step, training.saved_step
    rest = f"--resume goes on after step {saved}" if saved else "nothing is saved yet"
    return f"interrupted after step {done}: {rest}"


def read_text(args: argparse.Namespace) -> Text:
    path = Path(args.text) if args.text else harbour.PATH
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused(f"--text: cannot read {path} ({error.strerror})") from None
    if len(content) <= args.context:
        raise Refused(
            f"--text: expected more than {args.context} characters (--context), got {len(content)}"
        )
    return Text(content)


def load_what_a_first_step_loads() -> None:
    """A first optimizer imports much of torch, which is not the run's to pay for."""
    model = torch.nn.Linear(1, 1)
    optimizer = make_optimizer(model, 0.0)
    model(torch.zeros(1, 1)).sum().backward()
    optimizer.step()


def train(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    if args.width % args.heads:
        raise Refused(f"--width: expected a multiple of {args.heads} (--heads), got {args.width}")
    torch.set_num_threads(args.threads)
    text = read_text(args)
    training = Training(args, text)
    with locked(Path(args.out)):
        if args.memory_limit:
            load_what_a_first_step_loads()
        try:
            with limited(args.memory_limit):
                training.run()
        except KeyboardInterrupt:
            sys.stderr.write(f"[retape train] {interrupted(training)}\n")
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            told = out_of_memory(args, training.totals.step + 1)
        else:
            result = training.result()
            console.print(summary(result, args.policy), markup=False, soft_wrap=True)
            return Exit.OK, result
    fix = "a smaller --batch or --context" if args.policy == "full" else "try --policy full"
    sys.stderr.write(f"[retape train] {told}, policy {args.policy}. Fix: {fix}.\n")
    return Exit.BUDGET, training.result(told)


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    try:
        return train(args, console)
    except Refused as refused:
        args.parser.exit(Exit.USAGE, f"[{args.parser.prog}] {refused}\n")
