"""How the layers run that retape.enable switched on: every bit as in the plain model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.python.bits import assert_same_bits
from tests.python.stacks import WIDTH, Block, Model, Stage, build, data, step
from torch import nn

import retape


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    "policy",
    ["full", "cheap", retape.Policy.full(), lambda info: "drop"],
    ids=["full", "cheap", "a policy", "a function"],
)
def test_gradients_are_those_of_the_plain_model(policy: Any) -> None:
    report = retape.enable(model := build(), policy=policy)
    assert_same_bits(step(model), step(build()))
    assert report.calls == 3
    assert report.reruns == 0
    assert report.stats.ops_replayed > 0
    assert report.stats.bytes_dropped > 0
    assert not report.idle


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_rerun_calls_each_layer_again(use_reentrant: bool) -> None:
    report = retape.enable(model := build(), method="rerun", use_reentrant=use_reentrant)
    assert_same_bits(step(model), step(build()))
    assert report.calls == report.reruns == 3


def test_full_holds_what_each_layer_is_given_and_no_more() -> None:
    model = build()
    report = retape.enable(model)
    step(model)
    hidden = 4 * WIDTH * 4
    weights = sum(p.nbytes for p in model.layers.parameters())
    held = report.stats.bytes_kept - weights
    assert held <= 3 * hidden
    assert report.stats.anchors == 0


@pytest.mark.parametrize("options", [{}, {"method": "rerun"}], ids=str)
@pytest.mark.parametrize("keywords", [False, True], ids=["positional", "keyword"])
def test_positional_and_keyword_arguments_alike(keywords: bool, options: dict[str, Any]) -> None:
    """Tensors that need gradients too."""

    def call(model: nn.Module) -> torch.Tensor:
        hidden = model.embed(data())
        scale = model.heads[0].weight.square().sum()
        mask = torch.ones(4, 1)
        mask[0] = 0
        for layer in model.layers:
            if keywords:
                hidden = layer(hidden=hidden, scale=scale, mask=mask)
            else:
                hidden = layer(hidden, scale, mask=mask)
        return hidden.square().mean()

    report = retape.enable(model := build(), **options)
    plain = step(build(), call)
    assert plain["gradients"]["heads.0.weight"].any()
    assert_same_bits(step(model, call), plain)
    assert report.calls == 3


def test_eval_mode_is_plain_unless_asked_for() -> None:
    plain = step(build().eval())
    model = build().eval()
    report = retape.enable(model)
    assert_same_bits(step(model), plain)
    assert report.calls == 0
    assert "called in eval mode only" in report.idle["layers.0"]
    retape.disable(model)
    report = retape.enable(model, in_eval=True)
    assert_same_bits(step(model), plain)
    assert report.stats.ops_replayed > 0


def test_without_gradients_layers_run_plain() -> None:
    model = build()
    report = retape.enable(model)
    with torch.no_grad():
        model(data())
    assert report.calls == 0
    assert set(report.idle.values()) == {"called without gradients only"}


def test_side_effects_happen_once() -> None:
    """A counter, a dict, a running statistic, and a buffer written in place."""

    class Stateful(Block):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.cache: dict[str, torch.Tensor] = {}
            self.statistics = nn.BatchNorm1d(WIDTH)
            self.register_buffer("static", torch.zeros(4, WIDTH))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.count += 1
            hidden = super().forward(self.statistics(hidden))
            key = self.up(hidden)
            past = self.cache.get("key")
            self.cache["key"] = key if past is None else torch.cat([past, key])
            with torch.no_grad():
                self.static.mul_(0.5).add_(hidden)
            return hidden * self.cache["key"].mean() + self.static

    plain, model = build(block=Stateful), build(block=Stateful)
    report = retape.enable(model)
    for _ in range(2):
        assert_same_bits(step(model, two_chunks), step(plain, two_chunks))
    assert report.stats.ops_replayed > 0
    for ours, theirs in zip(model.layers, plain.layers, strict=True):
        assert ours.count == theirs.count == 4
        assert_same_bits(ours.cache, theirs.cache, "cache")


def two_chunks(model: nn.Module) -> torch.Tensor:
    """The second call reads what the first put into the layers' caches."""
    for layer in model.layers:
        layer.cache.clear()
    return model(data()) + model(data().cos())


def test_static_cache_that_layers_write_in_place() -> None:
    class Attention(Block):
        def forward(self, hidden: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            cache[:4] = super().forward(hidden)
            return hidden + nn.functional.scaled_dot_product_attention(hidden, cache, cache)

    def call(model: nn.Module) -> torch.Tensor:
        hidden = model.embed(data())
        for i, layer in enumerate(model.layers):
            hidden = layer(hidden, cache=caches[i])
        return hidden.square().mean()

    found = []
    for enable in (False, True):
        model = build(block=Attention)
        caches = [torch.zeros(8, WIDTH) for _ in range(3)]
        report = retape.enable(model) if enable else None
        found.append((step(model, call), [cache.detach() for cache in caches]))
    assert report.stats.ops_replayed > 0
    assert_same_bits(found[1], found[0])
    assert found[0][1][0].any()


def test_enabled_layers_inside_enabled_layers() -> None:
    model = build(block=Stage)
    report = retape.enable(model, [Stage, Block])
    assert len(report) == 9
    assert_same_bits(step(model), step(build(block=Stage)))
    assert report.calls == 9
    assert report.stats.ops_replayed > 0


def test_different_layers_may_be_enabled_differently() -> None:
    model = build()
    first = retape.enable(model, "layers.0", policy="cheap")
    second = retape.enable(model, ["layers.1", "layers.2"])
    assert_same_bits(step(model), step(build()))
    assert [layer.name for layer in retape.enabled(model).layers] == first.names + second.names
    first.disable()
    assert retape.enabled(model).names == second.names


def test_enabling_twice_is_an_error_and_changes_nothing() -> None:
    model = build()
    report = retape.enable(model, "layers.1")
    with pytest.raises(retape.UsageError, match=r"enabled already: layers.1. Fix: retape.disable"):
        retape.enable(model)
    assert retape.enabled(model).names == report.names == ["layers.1"]


def test_exception_in_a_layer_closes_its_region() -> None:
    class Broken(Block):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            super().forward(hidden)
            raise KeyError("mine")

    model = build(block=Broken)
    with pytest.raises(KeyError), retape.enable(model):
        model(data())
    assert not retape.is_recording()
    assert not len(retape.enabled(model))


def test_hooks_of_layers_run_once_with_what_they_expect() -> None:
    seen: list[str] = []

    def hooked() -> Model:
        model = build()
        layer = model.layers[1]
        layer.register_forward_pre_hook(lambda module, args: seen.append("before"))
        layer.register_forward_hook(lambda module, args, out: (seen.append("after"), out * 2)[1])
        layer.register_full_backward_hook(lambda module, i, o: seen.append("backward"))
        return model

    plain = step(hooked())
    report = retape.enable(model := hooked())
    assert_same_bits(step(model), plain)
    assert seen == ["before", "after", "backward"] * 2
    assert report.stats.ops_replayed > 0


def test_compiled_model_runs_its_layers_plain() -> None:
    model = build(block=lambda: Block(dropout=0.0))
    report = retape.enable(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    plain = step(build(block=lambda: Block(dropout=0.0)))
    assert_same_bits(step(model, lambda model: compiled(data())), plain)
    assert report.calls == 0
    assert_same_bits(step(model), plain)
    assert report.calls == 3


def test_counts_of_many_calls_add_up() -> None:
    model = build()
    report = retape.enable(model)
    step(model)
    once = report.stats
    for _ in range(99):
        step(model)
    assert report.calls == 300
    assert vars(report.stats) == {name: 100 * count for name, count in vars(once).items()}
    assert len(report.layers[0]._scopes) == 64


def test_report_reads_well() -> None:
    model = build()
    report = retape.enable(model)
    assert report.never_ran == report.names
    step(model)
    assert str(report).startswith("3 layers, 3 calls: ")
    assert f"{report.stats.ops_replayed} ops replayed" in str(report)
    assert report.never_ran == []
