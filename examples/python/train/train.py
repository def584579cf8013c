"""Trains a character-level transformer on a text, with Retape around the forward pass.

    python train.py --steps 200 --policy full --out build/train
    python train.py --steps 200 --policy full --out build/train --resume   # after any kind of end

Killed at any moment and resumed, it computes the losses of a run that was never killed, bit for
bit. `examples/cpp/train_gpt.cpp` is the same in C++: same options, same files, same losses.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from corpus import Text, tiny_corpus
from gpt import GPT
from memory_limit import is_out_of_memory, limited
from options import parse
from saved_run import Refused, SavedRun, locked, make_optimizer, shortest

import retape

OK, USAGE, BUDGET, INTERRUPTED = 0, 2, 4, 130


class Training:
    def __init__(self, args: argparse.Namespace, text: Text) -> None:
        self.args, self.text = args, text
        self.step = self.first_step = self.saved_step = self.parameters = self.peak_bytes = 0
        self.seconds = self.replay_seconds = 0.0
        self.losses: list[float] = []

    def run(self) -> None:
        with retape.memory.Meter() as meter:  # before the model: parameters and moments count
            self._make_model()
            self._resume()
            while self.step < self.args.steps:
                self._step()
                self.peak_bytes = meter.peak
                self._show()
                self._save_if_due()

    def _make_model(self) -> None:
        args = self.args
        torch.manual_seed(args.seed)
        self.model = GPT(len(self.text.alphabet), args)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = make_optimizer(self.model, args.lr)
        # Policy, steps and limits do not change a bit: they may differ when a run is resumed.
        names = "layers width heads context batch seed threads dropout lr".split()
        settings = {name: shortest(getattr(args, name)) for name in names}
        settings["text"] = self.text.digest
        self.saved = SavedRun(Path(args.out), self.model, self.optimizer, settings)

    def _resume(self) -> None:
        args = self.args
        if self.saved.path.exists():
            if not args.resume:
                raise Refused(
                    f"--out: there is a saved run in {args.out}. Fix: --resume, or another --out"
                )
            self.step = self.first_step = self.saved_step = self.saved.load()
            self._note(f"Going on after step {self.step}.")
        elif args.resume:
            self._note(f"No saved run in {args.out}: from the start.")
        self.saved.remove_half_saved()

    def _step(self) -> None:
        args, start = self.args, time.perf_counter()
        ids = self.text.batch(args.seed, self.step * args.batch, args.batch, args.context)
        self.optimizer.zero_grad(set_to_none=True)
        if args.policy == "none":
            loss = self.model(ids)
            loss.backward()
        else:
            with retape.recompute(args.policy, name="gpt", timed=True) as scope:
                loss = self.model(ids)
            loss.backward()
            self.replay_seconds += scope.stats.replay_ns * 1e-9
        self.optimizer.step()
        self.step += 1
        self.losses.append(float(f"{loss.item():.9g}"))  # nine digits identify a float
        self.seconds += time.perf_counter() - start
        if not math.isfinite(self.losses[-1]):
            raise Refused(f"step {self.step}: the loss is not finite. Fix: a smaller --lr")

    def _save_if_due(self) -> None:
        args = self.args
        if self.step == args.steps or (args.save_every and self.step % args.save_every == 0):
            about = {
                "position": str(self.step * args.batch),  # windows of the text drawn so far
                "policy": args.policy,
                "torch": torch.__version__.split("+")[0],
            }
            self.saved.save(self.step, self.text.alphabet, about)
            self.saved_step = self.step

    def _note(self, text: str) -> None:
        if not self.args.quiet:
            print(text, file=sys.stderr, flush=True)

    def _show(self) -> None:
        """One live line on a terminal, elsewhere a line per step."""
        line = (
            f"step {self.step}/{self.args.steps}  loss {self.losses[-1]:.9g}  "
            f"tokens/s {self.tokens_per_second:.0f}  peak {format_bytes(self.peak_bytes)}  "
            f"replay {100 * self.replay_share:.1f} %"
        )
        is_live = sys.stderr.isatty() and not os.environ.get("CI")
        if is_live and not self.args.quiet:
            end = "\n" if self.step == self.args.steps else ""
            print(f"\r{line}\x1b[K", file=sys.stderr, end=end, flush=True)
        else:
            self._note(line)

    @property
    def tokens_per_second(self) -> float:
        tokens = len(self.losses) * self.args.batch * self.args.context
        return tokens / self.seconds if self.seconds else 0.0

    @property
    def replay_share(self) -> float:
        return self.replay_seconds / self.seconds if self.seconds else 0.0

    def result(self, error: str | None) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "first_step": self.first_step,
            "step": self.step,
            "losses": self.losses,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "peak_bytes": self.peak_bytes,
            "replay_share": round(self.replay_share, 4),
            "error": error,
        }

    def summary(self) -> str:
        if not self.losses:
            return f"Nothing to do: the saved run is at step {self.step}."
        return (
            f"{len(self.losses)} steps of {self.parameters} parameters, policy {self.args.policy}: "
            f"loss {self.losses[0]:.3f} to {self.losses[-1]:.3f}, "
            f"{self.tokens_per_second:.0f} tokens/s, peak {format_bytes(self.peak_bytes)}, "
            f"{100 * self.replay_share:.1f} % of the time in replay."
        )


def format_bytes(count: float) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def read_text(args: argparse.Namespace) -> Text:
    try:
        content = Path(args.text).read_bytes() if args.text else tiny_corpus()
    except OSError as error:
        raise Refused(f"--text: cannot read {args.text} ({error.strerror})") from None
    if len(content) <= args.context:
        raise Refused(
            f"--text: expected more than {args.context} characters (--context), got {len(content)}"
        )
    return Text(content)


def warm_up() -> None:
    """A first optimizer step imports much of torch, which a memory limit should not count."""
    model = torch.nn.Linear(1, 1)
    model(torch.zeros(1, 1)).sum().backward()
    make_optimizer(model, 0.0).step()


def write_report(args: argparse.Namespace, code: int, result: dict[str, Any]) -> None:
    environment = {"retape": retape.__version__, "torch": torch.__version__}
    report = {
        "format": "retape/1",
        "verb": "train",
        "environment": environment,
        "arguments": vars(args),
        "result": result,
        "exit_code": code,
    }
    text = json.dumps(report, indent=2) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    else:
        Path(args.json).write_text(text, encoding="utf-8")


def train(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    training = Training(args, read_text(args))
    with locked(Path(args.out)):
        if args.json != "-":  # fails now, not after hours of work
            Path(args.json).open("a").close()
        warm_up()
        error, code = None, OK
        try:
            with limited(args.memory_limit):
                training.run()
        except KeyboardInterrupt:
            saved = training.saved_step
            rest = f"--resume goes on after step {saved}" if saved else "nothing is saved yet"
            print(f"[train] interrupted after step {training.step}: {rest}", file=sys.stderr)
            return INTERRUPTED
        except (MemoryError, RuntimeError) as raised:
            if not is_out_of_memory(raised):
                raise
            code, error = BUDGET, f"out of memory at step {training.step + 1}"
        if error and args.memory_limit:
            error += f": --memory-limit is {format_bytes(args.memory_limit)}"
        if error:
            fix = "a smaller --batch or --context" if args.policy == "full" else "try --policy full"
            print(f"[train] {error}, policy {args.policy}. Fix: {fix}.", file=sys.stderr)
        else:
            print(training.summary(), file=sys.stderr if args.json == "-" else sys.stdout)
        write_report(args, code, training.result(error))
        return code


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    try:
        return train(args)
    except Refused as refused:
        print(f"[train] {refused}", file=sys.stderr)
    except OSError as error:
        print(f"[train] cannot write {args.json} ({error.strerror})", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
