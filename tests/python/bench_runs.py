"""Runs of `retape bench` made by hand, for tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retape.bench.result import BITWISE, CLOSE, DIFFERENT, Event, Row, Run, Subject, Timeline

MIB = 1 << 20
HOSTILE = "</script><script>hit(1)</script><img src=x onerror=hit(2)> ]]> & \"' |`*_ \x00\x1b[31m \ud800 \u202e 名"
ENVIRONMENT = {
    "retape": "0.1.0",
    "torch": "2.13.0",
    "cpu": "Some CPU",
    "threads": 2,
    "blas": "MKL 2024.2",
}


def spread(middle: float, half: float = 0.01) -> tuple[float, float, float]:
    return middle * (1 - half), middle, middle * (1 + half)


def row(method: str, family: str, peak: float, seconds: float, **changes: Any) -> Row:
    """One that was measured in full; `peak` in MiB."""
    base: dict[str, Any] = {
        "around": "block",
        "peak": int(peak * MIB),
        "held": int(peak * MIB * 0.6),
        "forward": spread(seconds / 3),
        "backward": spread(seconds * 2 / 3),
        "total": spread(seconds),
        "ratio": spread(seconds / 0.120),
        "gflop": 12.5,
        "equal": BITWISE,
        "replayed": 0 if family in ("plain", "retape", "output discard") else None,
    }
    return Row(method, family, **{**base, **changes})


def rows() -> list[Row]:
    return [
        row("plain", "plain", 412.0, 0.120, ratio=(1.0, 1.0, 1.0)),
        row("retape full", "retape", 131.5, 0.139, replayed=96, gflop=15.9),
        row("retape cheap", "retape", 188.0, 0.126, replayed=41, gflop=12.5),
        row("retape plan 150 MiB", "retape", 149.7, 0.132, replayed=64, gflop=13.9),
        row("torch non-reentrant", "torch", 133.0, 0.158, gflop=16.6),
        row("torch reentrant", "torch", 133.4, 0.161, gflop=16.6),
        row("torch selective", "torch", 196.0, 0.149, gflop=12.5),
        row("output discard", "output discard", 301.0, 0.131, replayed=8, gflop=13.0),
        row("compile, budget 0.5", "compile", 239.0, 0.118, equal=CLOSE),
        row("hand-written", "other", 170.0, 0.150, equal=DIFFERENT),
        Row("deepspeed", "other", "block", skipped="needs the package deepspeed"),
        row("fairscale", "other", 160.0, 0.0, forward=None, backward=None, total=None, ratio=None,
            error="RuntimeError: expected 2 outputs, got 3"),
    ]  # fmt: skip


def step(layers: int = 6, scale: float = 1.0, replays: bool = True) -> list[Event]:
    """Forward keeps, backward replays (or not), makes gradients, and frees."""
    events: list[Event] = []
    sizes: dict[int, int] = {}
    live = 0
    number = 0

    def take(size: float, kind: str, op: str, region: str, shape: str) -> int:
        nonlocal live, number
        number += 1
        sizes[number] = int(size * scale * MIB)
        live += sizes[number]
        events.append(Event(sizes[number], live, number, kind, op, region, shape))
        return number

    def free(identity: int, op: str, phase: str = "gradient") -> None:
        nonlocal live
        size = sizes[identity]
        live -= size
        events.append(Event(-size, live, identity, phase, op))

    ops = [("aten::mm", 4.0), ("aten::silu", 4.0), ("aten::mul", 4.0), ("aten::mm", 2.0)]
    kept: list[list[int]] = []
    for layer in range(layers):
        region = f"block.{layer}"
        here = [take(2.0, "kept", "aten::native_layer_norm", region, "f32[8,512,128]")]
        made = [take(size, "kept", op, region, "f32[8,512,256]") for op, size in ops]
        if replays:
            for identity in made:
                free(identity, "aten::mm", "kept")
        kept.append(here if replays else here + made)
    gradient = take(2.0, "gradient", "aten::ones_like", "", "f32[8,512,128]")
    for layer in reversed(range(layers)):
        region = f"block.{layer}"
        again = (
            [take(size, "replayed", op, region, "f32[8,512,256]") for op, size in ops]
            if replays
            else []
        )
        take(0.25, "gradient", "aten::mm", region, "f32[128,256]")
        following = take(2.0, "gradient", "aten::add", region, "f32[8,512,128]")
        for identity in [gradient, *again, *kept[layer]]:
            free(identity, "aten::mm")
        gradient = following
    return events


def subject(name: str = "swiglu", **changes: Any) -> Subject:
    base: dict[str, Any] = {
        "title": "w2(silu(w1 x) * w3 x)",
        "group": "blocks",
        "size": {"layers": 8, "dtype": "float32", "width": 512, "tokens": 4096},
        "rows": rows(),
        "timelines": [
            Timeline("plain", step(replays=False)),
            Timeline("retape full", step()),
        ],
    }
    return Subject(name, **{**base, **changes})


def full_size() -> Subject:
    """Numbers as wide as those of eight layers at the size for memory."""
    size = {
        "layers": 8,
        "dtype": "float32",
        "d_model": 2048,
        "d_ff": 8192,
        "batch": 2,
        "sequence": 2048,
    }

    def wide(
        method: str, family: str, peak: float, seconds: float, gflop: float, **changes: Any
    ) -> Row:
        ratio = spread(seconds / 0.146, 0.17)
        return row(method, family, peak, seconds, **{"gflop": gflop, "ratio": ratio, **changes})

    found = [
        wide("plain", "plain", 6240.0, 0.146, 9895.6, ratio=(1.0, 1.0, 1.0)),
        wide("retape cheap", "retape", 4224.0, 0.152, 9895.6, replayed=16),
        wide("retape cheap, random too", "retape", 4224.0, 0.154, 9895.6, replayed=16),
        wide("retape full", "retape", 3552.0, 0.163, 12094.6, replayed=32),
        wide("retape rows", "retape", 3236.0, 0.329, 12094.6, replayed=664, equal=CLOSE, rounds=True),
        wide("torch checkpoint", "torch", 3776.0, 0.211, 12094.6),
        wide("torch checkpoint, sqrt(n) groups", "torch", 4480.0, 0.229, 12781.8),
        wide("output discard, fallback", "output discard", 3776.0, 0.575, 12094.6, replayed=None),
        Row("OLMo-core's output discard", "other", "inner", skipped="needs the package olmo_core"),
        Row("Megatron's output discard", "other", "inner", skipped="needs the package megatron"),
        *(
            wide(f"retape full, last {k} cheap", "retape", 3552.0 + 100 * k, 0.16, 12094.6 - 275 * k,
                 replayed=32 - 2 * k)
            for k in range(1, 8)
        ),
    ]  # fmt: skip
    time_size = {**size, "d_model": 128, "d_ff": 256, "sequence": 64}
    return subject(title="w2([silu(w1 x) * w3 x])", size=size, time_size=time_size, rows=found)


def memory_only() -> Run:
    """No times, and no gradients compared."""
    measured = full_size()
    measured.time_size = None
    for each in measured.rows:
        each.forward = each.backward = each.total = each.ratio = each.equal = None
    return run(measured, replace(measured, name="swiglu again"))


def run(*subjects: Subject, warnings: tuple[str, ...] = ()) -> Run:
    return Run(list(subjects) or [subject()], list(warnings))


def hostile() -> Run:
    """Everything that can be named is called HOSTILE."""
    events = [Event(MIB, MIB, 1, HOSTILE, HOSTILE, HOSTILE, HOSTILE)]
    events.append(Event(MIB, 2 * MIB, 2, "kept", HOSTILE, HOSTILE, HOSTILE))
    cells = [
        row(HOSTILE, "plain", 400, 0.12, around=HOSTILE),
        row(HOSTILE, HOSTILE, 300, 0.13, around=HOSTILE, equal=HOSTILE),
        Row(HOSTILE, HOSTILE, HOSTILE, skipped=HOSTILE),
        Row("=1+1", HOSTILE, "@SUM(A1)", error=HOSTILE),
        Row("differs", HOSTILE, equal="different", differs=[HOSTILE, HOSTILE]),
    ]
    size = {"layers": HOSTILE, "dtype": HOSTILE, HOSTILE: HOSTILE}
    named = Subject(HOSTILE, HOSTILE, HOSTILE, size, None, cells, [Timeline(HOSTILE, events)])
    return Run([named, named], [HOSTILE])


def many() -> Run:
    return run(
        subject(),
        subject(
            "attention",
            title="softmax(q k / sqrt d) v",
            time_size={"layers": 2, "dtype": "float32"},
        ),
        subject("moe", timelines=[]),
        subject("tiny", rows=rows()[:1], timelines=[Timeline("plain", step(1, 1e-4))]),
        subject("gpt, 124 M", group="models", timelines=[Timeline("retape full", step(300, 0.1))]),
        subject("empty", rows=[], timelines=[], group="models"),
        warnings=(
            "noisy: in 3 of 12 rows the middle half of the ratios spreads over more than 10%.",
        ),
    )
