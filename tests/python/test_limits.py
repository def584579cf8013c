"""Lines of docs/limits.md on writes, memory and random numbers that no other test shows, those that say "not
noticed" among them; and that each line of that page names a test. Lines on where Retape stands aside and on what
comes back: test_limits_kept. On ranks: test_limits_ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import retape

DROP = retape.Policy.full().anchors(False)
ROOT = Path(__file__).parents[2]


def gradient(forward: Callable[[Tensor], Tensor], after: Callable[[], None], scope: bool) -> Tensor:
    x = torch.linspace(-1, 1, 8).requires_grad_()
    if scope:
        with retape.recompute(DROP):
            loss = forward(x)
    else:
        loss = forward(x)
    after()
    loss.backward()
    return x.grad


def nothing() -> None:
    pass


def is_right(make: Callable[[], tuple[Callable[[Tensor], Tensor], Callable[[], None]]]) -> bool:
    """Whether the recomputed gradient is plain autograd's."""
    plain, recomputed = (gradient(*make(), scope=scope) for scope in (False, True))
    return torch.equal(plain, recomputed)


ALLOCATIONS: dict[str, tuple[Callable[[], Tensor], bool]] = {
    "empty": (lambda: torch.empty(8), True),
    "zeros": (lambda: torch.zeros(8), True),
    "overwritten by an op": (lambda: torch.empty(8).fill_(1), False),
}


@pytest.mark.parametrize(("allocate", "right"), ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_memory_that_numpy_fills_is_kept_unless_an_op_has_overwritten_it(
    allocate: Callable[[], Tensor], right: bool
) -> None:
    def make():
        def forward(x: Tensor) -> Tensor:
            filled = allocate()
            filled.numpy()[:] = 3
            return (x * filled).sin().sum()

        return forward, nothing

    assert is_right(make) == right


def test_memory_that_numpy_fills_again_after_a_read_is_not_noticed() -> None:
    def make():
        def forward(x: Tensor) -> Tensor:
            filled = torch.empty(8)
            filled.numpy()[:] = 3
            y = (x * filled).sin()
            filled.numpy()[:] = 2
            return y.sum()

        return forward, nothing

    assert not is_right(make)


@pytest.mark.parametrize("announced", [False, True])
def test_a_recorded_result_that_numpy_changes_must_be_announced(announced: bool) -> None:
    def make():
        def forward(x: Tensor) -> Tensor:
            made = x.detach().exp()
            if announced:
                retape.will_write(made)
            made.numpy()[:] = 3
            return (x * made).sin().sum()

        return forward, nothing

    assert is_right(make) == announced


@pytest.mark.parametrize("fix", ["none", "will_write", "empty", "keep_ops", "outside the scope"])
def test_every_fix_for_a_write_that_is_not_noticed_works(fix: str) -> None:
    def of(x: Tensor) -> Tensor:
        made = torch.empty(8) if fix == "empty" else x.detach().exp()
        if fix == "will_write":
            retape.will_write(made)
        made.numpy()[:] = 3
        return made

    def run(policy: object) -> Tensor:
        x = torch.linspace(-1, 1, 8).requires_grad_()
        outside = of(x) if fix == "outside the scope" else None
        with retape.recompute(policy):
            loss = (x * (of(x) if outside is None else outside)).sin().sum()
        del outside
        loss.backward()
        return x.grad

    policy = DROP.keep_ops(["aten::exp"]) if fix == "keep_ops" else DROP
    assert torch.equal(run(policy), run("none")) == (fix != "none")


@pytest.mark.parametrize("restored", [False, True])
def test_a_kernel_of_aten_that_is_overridden_in_forward_only(restored: bool) -> None:
    def run(policy: object) -> Tensor:
        x = torch.linspace(-0.5, 0.5, 8).requires_grad_()
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("erfinv", lambda given: given * 3, "CPU", allow_override=True)
            with retape.recompute(policy):
                loss = (x * x.detach().erfinv()).sum()
            if not restored:
                loss.backward()
        if restored:
            loss.backward()
        return x.grad

    given = torch.linspace(-0.5, 0.5, 8)
    assert torch.equal(run("none"), given * 3)
    assert torch.equal(run(DROP), given.erfinv() if restored else given * 3)


def test_apply_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.apply_(lambda y: y + 1)

    assert not is_right(make)


def test_numpy_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.numpy().fill(2)

    assert not is_right(make)


def test_numpy_inside_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)

        def forward(x: Tensor) -> Tensor:
            h = (x + given).sin()
            given.numpy().fill(2)
            return h.sin().sum()

        return forward, nothing

    assert not is_right(make)


def test_a_write_after_a_scope_that_saw_only_data_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given.data).sin().sin().sum(), lambda: given.mul_(2)

    assert not is_right(make)


def test_data_that_is_written_after_the_scope_is_read_as_it_is_then() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.data.mul_(2)

    assert not is_right(make)


def test_data_that_plain_autograd_saved_is_read_as_it_is_then_by_both() -> None:
    x, w = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
    for policy in ("none", DROP):
        w.data.fill_(1)
        with retape.recompute(policy):
            loss = (x * w).sum()
        w.data.mul_(2)
        loss.backward(inputs=[x])
        assert x.grad.eq(2).all()
        x.grad = None


@pytest.mark.parametrize(
    "look",
    [
        lambda t: t,
        lambda t: t.expand(3, 8),
        lambda t: t.view(2, 4).mT.reshape(8),
        lambda t: t[None],
    ],
)
def test_a_batch_norm_after_the_scope_does_not_reach_replay(
    look: Callable[[Tensor], Tensor],
) -> None:
    def make():
        mean, var = torch.zeros(8), torch.ones(8)

        def after() -> None:
            F.batch_norm(torch.arange(16.0).view(2, 8), mean, var, training=True)

        return lambda x: (x + look(mean)).sin().sin().sum(), after

    assert is_right(make)


def mul_in_a_handler(tensor: Tensor) -> None:
    """Moves no version: torch decomposes the op below the kernels that would."""
    before = tensor._version
    with FlopCounterMode(display=False), torch.no_grad():
        torch._foreach_mul_([tensor], 2)
    assert tensor._version == before


def test_what_a_handler_writes_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: mul_in_a_handler(given)

    assert not is_right(make)


@pytest.mark.parametrize(
    "write", [mul_in_a_handler, lambda t: t.data.mul_(2), lambda t: t.apply_(abs)]
)
def test_a_later_scope_sees_a_write_that_moves_no_version(
    write: Callable[[Tensor], object],
) -> None:
    given = torch.full((2, 8), -1.0)
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP):
        loss = (x + given).sin().sin().sum()
    with retape.recompute(DROP):
        write(given)
    with pytest.raises(retape.ReplayMismatch, match="aten::add read in forward.*inplace"):
        loss.backward()


def preserving(tensor: Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(tensor):
        tensor.mul_(2)


def by_a_fused_optimizer(tensor: Tensor) -> None:
    weight = torch.nn.Parameter(tensor)  # on the same memory
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1, fused=True).step()


@pytest.mark.parametrize(
    "write",
    [
        by_a_fused_optimizer,
        preserving,
        lambda t: torch.empty(0).set_(t).mul_(2),
        lambda t: torch.from_numpy(t.numpy()).mul_(2),
        lambda t: torch.from_dlpack(t).mul_(2),
        lambda t: torch.batch_norm_update_stats(torch.arange(16.0).view(2, 8), t[0], t[1], 0.5),
    ],
    ids=[
        "fused optimizer",
        "preserved version",
        "set_",
        "numpy",
        "dlpack",
        "statistics in a matrix",
    ],
)
def test_other_writes_that_move_no_version_are_not_noticed_after_the_scope(
    write: Callable[[Tensor], object],
) -> None:
    def make():
        given = torch.ones(2, 8)
        before = given._version

        def after() -> None:
            write(given)
            assert given._version == before

        return lambda x: (x + given).sin().sin().sum(), after

    assert not is_right(make)


def test_a_graph_that_outlives_one_that_it_shares_its_start_with_may_hold_more() -> None:
    """Both are replayed from versions of one cache. Weighed together they hold less than eager."""

    def held(policy: str | None) -> tuple[int, int]:
        torch.manual_seed(0)
        first, second = torch.rand(()).requires_grad_(), torch.rand(4).requires_grad_()
        cache = torch.rand(2, 130, 4)
        with retape.memory.Meter() as meter:
            with retape.recompute(policy) if policy else nullcontext():
                for t in range(130):
                    cache[:, t].copy_(first.detach())
                    first = (first + (cache.softmax(1) * 0.5).sum(1)).tanh()
                for t in range(130):
                    cache[:, t] = second.detach().cos()
                    second = (second * cache[:, : t + 1].mean(1)).sin()
            both = meter.current
            del second
            return both, meter.current

    plain, cheap = held(None), held("cheap")
    assert cheap[0] <= plain[0]
    assert cheap[1] > plain[1]


ON_A_THREAD = """
from contextlib import nullcontext
import threading, torch, retape
torch.set_num_threads(1)
torch.manual_seed(0)
given, weight = torch.rand(6, 32), torch.rand(32, 32)

def gradient(recomputed):
    x = given.clone().requires_grad_()
    def body():
        torch.get_num_threads()
        with retape.recompute(retape.Policy.full().anchors(False)) if recomputed else nullcontext():
            loss = (x @ weight).sin().sin().sum()
        loss.backward()
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return x.grad

assert torch.equal(gradient(False), gradient(True))
"""


def test_a_thread_that_asks_for_the_number_of_threads_computes_the_same_bits() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}  # what torch.set_num_threads(1) is to undo
    subprocess.run([sys.executable, "-c", ON_A_THREAD], env=environment, check=True)


def test_a_released_storage_is_not_gathered_again() -> None:
    given = torch.ones(2, 8)
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP):
        loss = (x + given).sin().sin().sum()
    given.untyped_storage().resize_(0)
    with pytest.raises(retape.ReplayMismatch, match="aten::add"):
        loss.backward()


class State(nn.Module):
    """Each layer reads a state that the model overwrites after it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((8,), 0.3))

        def forward(self, x: Tensor, state: Tensor) -> Tensor:
            return (x * self.weight + state).sin().sin()

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([State.Layer(), State.Layer()])

    def forward(self, x: Tensor) -> Tensor:
        state = torch.ones(2, 8)
        for layer in self.layers:
            x = layer(x, state)
            state.mul_(2)
        return x.sum()


def test_a_state_that_is_overwritten_after_the_layer_that_read_it_needs_one_scope_around_both() -> (
    None
):
    x = torch.linspace(-1, 1, 8)
    plain, recomputed, enabled = State(), State(), State()
    plain(x).backward()
    with retape.recompute(DROP) as scope:
        loss = recomputed(x)
    loss.backward()
    assert scope.stats.ops_replayed > 0
    for ours, theirs in zip(recomputed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)

    retape.enable(enabled, layers="layers.*")
    with pytest.raises(retape.ReplayMismatch, match="aten::add"):
        enabled(x).backward()


@torch.library.custom_op(
    "retape_limits::noise", mutates_args=(), tags=[torch.Tag.nondeterministic_seeded]
)
def noise(x: Tensor) -> Tensor:
    for look in DURING_NOISE:
        look()
    return torch.rand_like(x)


DURING_NOISE: list[Callable[[], object]] = []
retape.replayable("retape_limits::noise")


def test_another_thread_that_draws_while_a_random_op_is_replayed_draws_the_numbers_of_forward() -> (
    None
):
    def drawn_on_another_thread() -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.rand, 8).result()

    torch.manual_seed(3)
    forwards = torch.rand(8)
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP):
        loss = (x * noise(x.detach())).sum()
    state = torch.get_rng_state()
    drawn: list[Tensor] = []
    DURING_NOISE.append(lambda: drawn.append(drawn_on_another_thread()))
    try:
        loss.backward()
    finally:
        DURING_NOISE.clear()
    assert torch.equal(drawn[0], forwards)
    assert torch.equal(torch.get_rng_state(), state)


def peak_of_a_chain(policy: object) -> int:
    x = torch.ones(1 << 12, requires_grad=True)
    with retape.memory.Meter() as meter:
        with retape.recompute(policy):
            y = x
            for _ in range(64):
                y = y.sin()
        y.sum().backward()
        return meter.peak // x.nbytes


def test_what_a_policy_function_drops_as_a_whole_comes_back_as_a_whole() -> None:
    assert peak_of_a_chain("full") < 32
    assert peak_of_a_chain(lambda info: False) > 60


def test_a_policy_that_names_what_to_drop_is_obeyed_where_that_costs_more() -> None:
    def held(policy: object) -> int:
        x = torch.ones(256, requires_grad=True)
        with retape.memory.Meter() as meter:
            table = torch.ones(64, 256)
            with retape.recompute(policy):
                loss = (x.sin() * table.sum(0)).sum()
            del table
            return meter.current - loss.nbytes

    row, table = 256 * 4, 64 * 256 * 4
    assert held("none") == row
    assert held("full") == held("cheap") == row
    assert held(lambda info: False) == held(retape.Policy.none().drop_ops(["aten::sum"])) >= table


def test_of_a_written_tensor_and_what_was_computed_from_it_the_smaller_is_held() -> None:
    def held(given: Tensor, compute: Callable[[Tensor], Tensor], policy: object) -> int:
        x = torch.ones(256, requires_grad=True)
        with retape.memory.Meter() as meter:
            with retape.recompute(policy):
                loss = (x.sin() * compute(given)).sum()
                given.mul_(2)
            return meter.current - loss.nbytes

    row, table = torch.ones(1, 256), torch.ones(64, 256)
    assert held(table, lambda given: given.sum(0), DROP) < 2 * row.nbytes
    assert held(row, lambda given: given.expand(64, -1) * 2, DROP) < 2 * row.nbytes
    assert held(row, lambda given: given.expand(64, -1) * 2, "none") >= table.nbytes


def test_a_meter_counts_tensors_and_neither_nodes_nor_objects_nor_scratch_memory() -> None:
    a, b, out = torch.ones(3, 256, 256).unbind()
    with retape.memory.Meter() as meter:
        x = torch.ones(256, requires_grad=True)
        kept = [bytearray(1 << 20), a.numpy().copy()]
        for _ in range(1000):
            kept.append(x.view(-1))
        torch.mm(a, b, out=out)
        assert meter.peak == x.nbytes


# ---- the page

NAMED = re.compile(r"\b(test_\w+)(?:::(\w+))?")


def lines_of(page: str) -> Iterator[str]:
    """Rows of tables, and paragraphs; not those under "Not run here"."""
    for section in page.split("\n## "):
        if section.startswith("Not run here"):
            continue
        for block in section.partition("\n")[2].split("\n\n"):
            lines = block.strip().splitlines()
            rows = [line for line in lines if line.startswith("|")]
            yield from rows[2:]  # after the heading
            if text := " ".join(line for line in lines if line not in rows):
                yield text


def is_a_test(module: str, test: str) -> bool:
    folders = ("python", "conformance")
    paths = [
        path for folder in folders if (path := ROOT / "tests" / folder / f"{module}.py").exists()
    ]
    return len(paths) == 1 and (not test or f"def {test}(" in paths[0].read_text(encoding="utf-8"))


def lines_without_tests(page: str) -> list[str]:
    """Those that name none, or one that does not exist."""
    return [
        line
        for line in lines_of(page)
        if not NAMED.findall(line) or not all(is_a_test(*named) for named in NAMED.findall(line))
    ]


PAGE = (ROOT / "docs/limits.md").read_text(encoding="utf-8")


def test_every_line_of_the_page_names_tests_that_exist() -> None:
    assert len(list(lines_of(PAGE))) > 45
    assert lines_without_tests(PAGE) == []


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("# Limits\nA line. (test_limits)\n\nAnother.\n", ["Another."]),
        (
            "# Limits\n## A\nA line. (test_limits::test_gone)\n",
            ["A line. (test_limits::test_gone)"],
        ),
        ("# Limits\n## A\n| a | b |\n|---|---|\n| c | |\n| d | test_limits |\n", ["| c | |"]),
        ("# Limits\n## Not run here\nA line.\n", []),
    ],
)
def test_a_line_without_a_test_is_found(page: str, missing: list[str]) -> None:
    assert lines_without_tests(page) == missing
