"""Ops and kernels that are gone or replaced between forward and backward, as after a module reload.

Each program runs in a process of its own, since a wrong answer may be a crash.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import torch, retape
from tests.python.bits import assert_same_bits

def library(factor, name="twice"):
    lib = torch.library.Library("retape_reload", "FRAGMENT")
    lib.define(name + "(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    lib.impl(name, lambda x: x.cos() * factor, "CPU")
    return lib

def override(factor):
    lib = torch.library.Library("aten", "IMPL")
    lib.impl("sin", lambda x: x.cos() * factor, "CPU", allow_override=True)
    return lib

def region(x):
    return (x * torch.ops.retape_reload.twice(x.detach() * 2)).sin() * 3

def forward(way, region=region):
    x = torch.linspace(-2, 2, 16).view(4, 4).requires_grad_()
    return x, way(region, x)

def plain(function, x):
    return function(x)

def scope(function, x):
    with retape.recompute(retape.Policy.full().anchors(False)):
        return function(x)

def report(y, x, expected):
    try:
        y.sum().backward()
    except retape.Error as error:
        print("ERROR", error)
    else:
        assert_same_bits(x.grad, expected)
        print("EQUAL")
"""


def output_of(program: str) -> str:
    """What the program prints. A crash fails here, with the signal's number."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout


WAYS = pytest.mark.parametrize("way", ["scope", "retape.checkpoint"])


@WAYS
def test_a_replayable_op_whose_library_is_gone_raises_an_error_with_its_name(way: str) -> None:
    out = output_of(f"""
retape.replayable("retape_reload::twice")
lib = library(2)
x, y = forward({way})
lib._destroy()
report(y, x, None)
""")
    assert out.startswith("ERROR") and "retape_reload::twice" in out and "Fix:" in out


@WAYS
def test_an_op_that_is_kept_is_not_needed_in_backward(way: str) -> None:
    out = output_of(f"""
lib = library(2)
x, y = forward(plain)
y.sum().backward()
expected = x.grad
x, y = forward({way})
lib._destroy()
report(y, x, expected)
""")
    assert out == "EQUAL\n"


@WAYS
def test_a_replayable_op_that_is_defined_anew_gives_the_bits_of_forward_or_an_error(
    way: str,
) -> None:
    out = output_of(f"""
retape.replayable("retape_reload::twice")
lib = library(2)
x, y = forward(plain)
y.sum().backward()
expected = x.grad
x, y = forward({way})
lib._destroy()
lib = library(5)
report(y, x, expected)
""")
    assert out == "EQUAL\n" or (out.startswith("ERROR") and "retape_reload::twice" in out)


@WAYS
def test_an_op_that_is_defined_anew_is_recorded_anew(way: str) -> None:
    out = output_of(f"""
retape.replayable("retape_reload::twice")
for factor in (2, 5):
    lib = library(factor)
    x, y = forward(plain)
    y.sum().backward()
    expected = x.grad
    x, y = forward({way})
    report(y, x, expected)
    lib._destroy()
""")
    assert out == "EQUAL\nEQUAL\n"


@WAYS
def test_another_op_of_the_same_name_and_other_arguments_does_not_crash(way: str) -> None:
    out = output_of(f"""
retape.replayable("retape_reload::twice")
lib = library(2)
x, y = forward({way})
lib._destroy()
lib = torch.library.Library("retape_reload", "FRAGMENT")
lib.define("twice(Tensor x, Tensor y, int n) -> (Tensor, Tensor)")
lib.impl("twice", lambda x, y, n: (x, y), "CPU")
report(y, x, None)
""")
    assert out.startswith("ERROR") and "retape_reload::twice" in out


@WAYS
def test_the_graph_may_die_after_the_library(way: str) -> None:
    out = output_of(f"""
lib = library(2)
x, y = forward({way})
lib._destroy()
del y
print("DONE")
""")
    assert out == "DONE\n"
