"""The six blocks: what every method holds, to the byte, and that gradients are the same."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.python import bench_peers

import retape
from retape.bench import blocks, measure, run
from retape.bench.blocks import BLOCKS, Size
from retape.bench.methods import METHODS, frontier
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, NAN, ZERO, Row

MIB = 1 << 20
SMALL = {"d_model": 64, "d_ff": 256, "batch": 2, "sequence": 64}
EAGER = [name for name, method in METHODS.items() if method.is_eager and not method.missing]
GROUPS = "torch checkpoint, sqrt(n) groups"
PEERS = [name for name in EAGER if METHODS[name].family != "retape" and name != GROUPS]
DOCS = " ".join((Path(__file__).parents[2] / "docs/bench.md").read_text().split())
# In the order of its tables, and without output discard, which has lines of its own.
IN_DOCS = ("up_proj", "silu_up", "swiglu", "rms_norm", "fp32_softmax", "fp32_cast")
PEERS_IN_DOCS = [
    name for name in PEERS if METHODS[name].family in ("plain", "torch") or "torch_remat" in name
]


@functools.cache
def row_of(block: str, size: Size, method: str, dry: bool = True) -> Row:
    row = Row(method, METHODS[method].family)
    measure.memory(run.block_task(block, size, scaled=not dry), METHODS[method], row, dry)
    return row


# Peak MiB of eight layers at full size, float32: cheap and full at most this.
AIMS = {
    "up_proj": (2528, 2304),
    "silu_up": (2560, 2336),
    "swiglu": (4224, 3552),
    "rms_norm": (560, 560),
    "fp32_softmax": (544, 544),
    "fp32_cast": (544, 544),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_the_peak_at_full_size_is_what_was_aimed_at(block: str) -> None:
    cheap, full = (row_of(block, Size(), f"retape {policy}").peak for policy in ("cheap", "full"))
    assert cheap < (AIMS[block][0] + 1) * MIB
    assert full < (AIMS[block][1] + 1) * MIB


def mib(count: int) -> int:
    return round(count / MIB)


def table_in_docs(dtype: str) -> list[list[str]]:
    """Five columns of numbers, and torch.compile's with its budget."""
    _, numbers = DOCS.split(f"| block, {dtype} | plain | best peer at plain's FLOPs |")
    rows = re.findall(r"` \|((?: \d+ \|){5} \d+ \(\d\.\d\)) \|", numbers)
    return [row.strip().split(" | ") for row in rows[: len(IN_DOCS)]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", range(len(IN_DOCS)), ids=IN_DOCS)
def test_the_tables_of_the_docs_say_what_is_measured(place: int, dtype: str) -> None:
    block, size = IN_DOCS[place], Size(8, dtype)
    plain, *others = (row_of(block, size, name) for name in PEERS_IN_DOCS)
    cheap, full = (row_of(block, size, f"retape {policy}") for policy in ("cheap", "full"))
    same_work = min(row.peak for row in (plain, *others) if row.gflop <= plain.gflop)
    best = min(row.peak for row in others)
    measured = [plain.peak, same_work, cheap.peak, best, full.peak]
    assert [str(mib(peak)) for peak in measured] == table_in_docs(dtype)[place][:5]


@pytest.mark.parametrize(
    ("dtype", "layers", "block", "method", "expected"),
    list(bench_peers.cells()),
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_ways_of_torch_need_what_another_program_measured(
    dtype, layers, block, method, expected
) -> None:
    size = Size(layers, dtype)
    plain, row = row_of(block, size, "plain"), row_of(block, size, method)
    peak, held, more = expected
    assert abs(row.peak - peak * MIB) < MIB
    assert abs(row.held - held * MIB) < MIB
    assert round(100 * (row.gflop / plain.gflop - 1)) == more


def test_the_docs_say_what_groups_of_layers_need() -> None:
    cast, softmax, swiglu = (
        mib(row_of(block, Size(), GROUPS).peak) for block in ("fp32_cast", "fp32_softmax", "swiglu")
    )
    assert f"({cast} MiB in the last row, {softmax} in the one before, float32)" in DOCS
    assert f"({swiglu} for swiglu)" in DOCS


@pytest.mark.parametrize("policy", ["cheap", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", ["up_proj", "silu_up", "swiglu"])
def test_one_scope_needs_what_one_for_each_layer_does(block: str, dtype: str, policy: str) -> None:
    each = row_of(block, Size(8, dtype), f"retape {policy}")
    one = row_of(block, Size(8, dtype), f"retape {policy}, one scope")
    assert mib(one.peak) == mib(each.peak)


def test_the_docs_say_where_one_scope_needs_less_or_more() -> None:
    norm, softmax, cast = (
        mib(row_of(block, Size(), "retape full, one scope").peak)
        for block in ("rms_norm", "fp32_softmax", "fp32_cast")
    )
    assert f"(`full`, float32: {norm}, {softmax} and {cast})" in DOCS
    more = mib(row_of("fp32_cast", Size(8, "bfloat16"), "retape full, one scope").peak)
    assert f"more only in the last cell of bfloat16 ({more})" in DOCS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("block", BLOCKS)
def test_full_is_never_above_an_eager_peer(block: str, layers: int, dtype: str) -> None:
    size = Size(layers, dtype)
    full = row_of(block, size, "retape full").peak
    best = min(row_of(block, size, name).peak for name in PEERS)
    assert full <= best
    # They forget inputs of layers too, and multiply more for it than anybody else: 21 %, and full nothing.
    lower = (block, layers, dtype) in (("fp32_cast", 8, "float32"), ("fp32_softmax", 8, "float32"))
    assert (row_of(block, size, GROUPS).peak < full) == lower


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("block", BLOCKS)
def test_cheap_multiplies_no_matrix_twice_and_is_never_above_a_peer_that_does_not(
    block: str, layers: int, dtype: str
) -> None:
    size = Size(layers, dtype)
    rows = [row_of(block, size, name) for name in PEERS]
    plain = rows[0]
    assert plain.method == "plain"
    best = min(row.peak for row in rows if row.gflop <= plain.gflop)
    cheap = row_of(block, size, "retape cheap")
    assert cheap.gflop == plain.gflop
    assert cheap.peak <= best


# Bytes at most that a kernel takes inside, where the peak falls into it: a dry run calls none.
INSIDE_KERNELS = {
    # A slice's gradient of a weight, bfloat16 [8, 256], is added to a float32 sum: add_ casts it first.
    ("swiglu", "retape rows", "bfloat16"): 4 * 8 * 256,
    # The loss: mean() of bfloat16 [2, 64, 64] casts it all, 32768 bytes, with 24574 fewer alive than later.
    ("fp32_softmax", "retape lean", "bfloat16"): 32768 - 24574,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", EAGER)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of the flags below, whatever they are
def test_a_dry_run_counts_the_bytes_that_arithmetic_needs(
    block: str, method: str, dtype: str
) -> None:
    size = Size(layers=3, dtype=dtype, **SMALL)
    dry = row_of(block, size, method)
    with torch.backends.mkldnn.flags(enabled=False):  # on some CPUs it takes scratch for bfloat16
        real = row_of(block, size, method, dry=False)
    assert (dry.held, dry.replayed) == (real.held, real.replayed)
    # Numbers inside kernels; the fallback's digests, which a dry run does not take.
    slack = 1 << 17 if "fallback" in method else 1 << 10
    inside = INSIDE_KERNELS.get((block, method, dtype), 0)
    assert -slack <= real.peak - dry.peak <= inside + slack


def test_what_scales_the_weights_before_a_step_is_not_in_its_peak() -> None:
    """Of one layer that runs in rows: to scale it takes all of them at once."""
    size = Size(layers=1, d_model=128, d_ff=512, batch=2, sequence=128)
    dry, real = (row_of("silu_up", size, "retape rows", dry) for dry in (True, False))
    assert real.peak == pytest.approx(dry.peak, abs=1 << 10)


@pytest.mark.parametrize("method", EAGER)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [3, 8])
def test_gradients_are_there_and_bitwise_plains(
    block: str, method: str, dtype: str, layers: int
) -> None:
    work = run.block_task(block, Size(layers=layers, dtype=dtype, **SMALL), scaled=True)
    plain = measure.after_step(work, METHODS["plain"])
    assert all(gradient.abs().max() > 0 for gradient in plain.gradients.values())
    equal, names = measure.equality(measure.after_step(work, METHODS[method]), plain)
    assert (equal == BITWISE) == (not names)
    # Reentrant checkpoints add up the gradients of an input in another order, slices of rows all sums.
    assert equal == BITWISE or (("reentrant" in method or "rows" in method) and equal == CLOSE)


def after(*gradients: torch.Tensor | None, buffer: float = 1.0) -> measure.After:
    named = {f"w{i}": gradient for i, gradient in enumerate(gradients)}
    return measure.After(named, {"mean": torch.tensor(buffer)})


ZEROS, NOT_ALL = torch.zeros(2), torch.tensor([0.0, 1.0])


@pytest.mark.parametrize(
    ("got", "plain", "found"),
    [
        (after(ZEROS, ZEROS), after(ZEROS, ZEROS), (ZERO, [])),
        (after(-ZEROS), after(ZEROS), (ZERO, [])),
        (after(None, ZEROS), after(None, ZEROS), (ZERO, [])),
        (after(ZEROS, NOT_ALL), after(ZEROS, NOT_ALL), (BITWISE, [])),
        (after(ZEROS), after(NOT_ALL), (DIFFERENT, ["w0"])),
        (after(NOT_ALL), after(ZEROS), (DIFFERENT, ["w0"])),
        (after(None), after(ZEROS), (DIFFERENT, ["w0"])),
        (after(ZEROS, buffer=2), after(ZEROS), (DIFFERENT, ["mean"])),
        (after(ZEROS / 0), after(ZEROS / 0), (NAN, [])),
        (after(ZEROS / 0, ZEROS), after(ZEROS / 0, ZEROS), (NAN, [])),
        (after(ZEROS / 0, NOT_ALL), after(ZEROS / 0, NOT_ALL), (BITWISE, [])),
        (after(NOT_ALL / 0), after(NOT_ALL / 0), (BITWISE, [])),  # infinity is no NaN
    ],
)
def test_zeros_and_nan_that_are_equal_are_told_from_gradients_that_are(got, plain, found) -> None:
    assert measure.equality(got, plain) == found


def test_each_budget_of_torch_compile_holds_what_it_holds_alone_dry_or_not() -> None:
    """The largest first: what was compiled for it is not what the others run."""
    size = Size(layers=2, **SMALL)
    budgets = [f"torch.compile, budget {budget}" for budget in (1.0, 0.5, 0.0)]
    for dry in (True, False):
        most, half, least = (row_of("swiglu", size, name, dry).held for name in budgets)
        assert most > half > least


# MiB of eight layers at full size: peak, held, and how many FLOPs more than plain.
COMPILED = {
    ("up_proj", "float32", 0.5): (2272, 256, 1 / 6),
    ("swiglu", "float32", 0.5): (3744, 8 * 160, 1 / 9),
    ("rms_norm", "float32", 0.5): (544, 256, 0),
}


@pytest.mark.parametrize(("block", "dtype", "budget"), COMPILED)
def test_what_is_compiled_for_a_dry_run_is_what_would_compute(
    block: str, dtype: str, budget: float
) -> None:
    size, name = Size(8, dtype), f"torch.compile, budget {budget}"
    plain, row = row_of(block, size, "plain"), row_of(block, size, name)
    peak, held, more = COMPILED[block, dtype, budget]
    assert (mib(row.peak), mib(row.held)) == (peak, held)
    assert row.gflop / plain.gflop - 1 == pytest.approx(more, abs=1e-6)
    assert table_in_docs(dtype)[IN_DOCS.index(block)][5] == f"{peak} ({budget})"


def test_points_of_the_frontier_lie_between_cheap_and_full() -> None:
    size = Size()
    work = run.block_task("swiglu", size, scaled=False)
    rows = []
    for method in frontier(size.layers):
        row = Row(method.name, method.family)
        measure.memory(work, method, row, dry=True)
        rows.append(row)
    cheap, full = row_of("swiglu", size, "retape cheap"), row_of("swiglu", size, "retape full")
    for less, more in zip(rows, rows[1:], strict=False):
        assert less.gflop > more.gflop
        assert full.peak <= less.peak <= more.peak <= cheap.peak
    # Output discard pays 14 % more FLOPs for 37 %.
    plain, point = row_of("swiglu", size, "plain"), rows[4]
    assert point.method == "retape full, last 5 cheap"
    assert 1 - point.peak / plain.peak > 0.43
    assert point.gflop / plain.gflop - 1 < 0.084


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_of_a_stack_puts_out_unit_deviation(block: str, dtype: str) -> None:
    """rms_norm adds as much to its input instead: a residual stream grows."""
    torch.manual_seed(0)
    size = Size(layers=8, dtype=dtype, **SMALL)
    stack, x = blocks.make_stack(block, size), blocks.make_input(size)
    blocks.scale(stack, x)
    for number, layer in enumerate(stack, 1):
        with torch.no_grad():
            x, before = layer(x), x.detach()
        residual = before if block == "rms_norm" else torch.zeros(())
        assert float((x.float() - residual.float()).std()) == pytest.approx(1, abs=0.02)
        grown = (number + 1) ** 0.5 if block == "rms_norm" else 1
        assert float(x.float().std()) == pytest.approx(grown, rel=0.05)


def cpp_bench(*words: str, code: int = 0) -> list[dict]:
    program = Path(__file__).parents[2] / "build/tests/bench/retape_bench"
    command = [program, "--benchmark_format=json", *words]
    said = subprocess.run(command, capture_output=True, check=False, text=True)
    assert said.returncode == code, said.stderr
    return json.loads(said.stdout)["benchmarks"]


@pytest.fixture
def _stock_nodes_for_small_results():
    """As they are outside of tests, and in the program."""
    retape._C.set_least_lean_bytes(1 << 14)
    yield
    retape._C.set_least_lean_bytes(0)


@pytest.mark.usefixtures("_stock_nodes_for_small_results")
@pytest.mark.parametrize("size", [SMALL, {}], ids=["small", "full size"])
def test_cpp_counts_the_same_bytes(size: dict[str, int]) -> None:
    found = cpp_bench("--dry", *(f"--{name}={value}" for name, value in size.items()))
    assert len(found) == 6 * 2 * 2 * 8
    for each in found:
        block, layers, dtype, method = each["name"].removesuffix("/iterations:1").split("/")
        row = row_of(block, Size(layers=int(layers), dtype=dtype, **size), method)
        told = (each["peak"], each["held"], each["replayed"])
        assert told == (row.peak, row.held, row.replayed), each["name"]
        assert each["GFLOP"] == pytest.approx(row.gflop), each["name"]


def test_cpp_has_the_columns_and_bits_of_python() -> None:
    sizes = [f"--{name}={value}" for name, value in SMALL.items()]
    found = cpp_bench("--benchmark_filter=/8/", "--benchmark_min_time=0", *sizes)
    assert len(found) == 6 * 2 * 8
    columns = {
        "peak",
        "held",
        "saved_%",
        "GFLOP",
        "replayed",
        "bitwise",
        "forward_ms",
        "backward_ms",
        "delta_%",
    }
    for each in found:
        assert columns <= set(each), each
        rounds = "retape rows" in each["name"] and not each["bitwise"]
        assert each["label"] == ("equal to rounding" if rounds else "bitwise equal"), each["name"]
        assert rounds or each["bitwise"] == 1, each["name"]
        assert each["real_time"] == pytest.approx(
            each["forward_ms"] + each["backward_ms"], rel=0.01
        )


def test_cpp_ends_with_1_where_a_row_has_not_the_bits_that_it_promises() -> None:
    """One unit in the last place of what is replayed: within the tolerance, which is not theirs."""
    sizes = [f"--{name}={value}" for name, value in SMALL.items()]
    words = ["--benchmark_filter=silu_up/8/float32/", "--benchmark_min_time=0", "--inject=one-ulp"]
    labels = {
        each["name"].split("/")[3]: each["label"] for each in cpp_bench(*words, *sizes, code=1)
    }
    replaying = {name for name in labels if name not in ("plain", "retape lean", "retape rows")}
    assert {name for name, label in labels.items() if label == "DIFFERENT"} == replaying
    assert labels["plain"] == "bitwise equal" and labels["retape rows"] == "equal to rounding"
