"""Which modules retape.enable takes for layers: by rule, by name, by class, by a predicate."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from tests.python.bits import assert_same_bits
from tests.python.stacks import Block, Model, Other, Stage, build, step
from torch import nn

import retape


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_default_is_the_blocks_of_module_lists() -> None:
    with retape.enable(build()) as report:
        assert report.names == ["layers.0", "layers.1", "layers.2"]


def container(*blocks: nn.Module) -> nn.Module:
    """A module that only holds others: it has no forward, so it is never called."""
    module = nn.Module()
    module.block = nn.ModuleList(blocks)
    return module


@pytest.mark.parametrize(
    ("children", "chosen"),
    [
        ([Block(), Block(), Other()], ["list.0", "list.1", "list.2"]),  # Zamba: two kinds of layers
        ([Block(), Block(), nn.Linear(2, 2), nn.Identity()], ["list.0", "list.1"]),
        ([Stage(), Stage()], ["list.0", "list.1"]),  # not the blocks inside them
        ([container(Block(), Block())], ["list.0.block.0", "list.0.block.1"]),  # as in a VQ-VAE
        ([Block()], ["list.0"]),  # a stack of one
        ([Block(), Other()], []),  # two different things are no stack
        ([nn.Linear(2, 2), nn.Linear(2, 2)], []),
        ([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())], []),  # no parameters
    ],
    ids=lambda value: "+".join(type(v).__name__ for v in value) if value and value[0] else "",
)
def test_what_looks_like_a_stack(children: list[nn.Module], chosen: list[str]) -> None:
    model = nn.Module()
    model.list = nn.ModuleList(children)
    if not chosen:
        with pytest.raises(retape.UsageError, match="found no list of layers in Module"):
            retape.enable(model)
        return
    with retape.enable(model) as report:
        assert report.names == chosen


def test_layer_that_is_used_twice_is_enabled_once() -> None:
    shared = Block()
    model = build(block=lambda: shared)
    plain = step(copy.deepcopy(model))
    report = retape.enable(model)
    assert report.names == ["layers.0"]
    assert_same_bits(step(model), plain)
    assert report.calls == 3
    assert report.stats.ops_replayed > 0


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        ("layers.1", ["layers.1"]),
        ("layers.*", ["layers.0", "layers.1", "layers.2"]),
        ("layers", ["layers.0", "layers.1", "layers.2"]),  # a list stands for its elements
        ("**.up", [f"layers.{i}.up" for i in range(3)]),
        ("**.heads.1", ["heads.1"]),
        (["embed", "heads.*"], ["embed", "heads.0", "heads.1"]),
        (Block, ["layers.0", "layers.1", "layers.2"]),
        ([nn.LayerNorm, "embed"], ["embed", *(f"layers.{i}.norm" for i in range(3))]),
        (lambda name, module: name.endswith(".0") and isinstance(module, Block), ["layers.0"]),
        (Model, [""]),  # the model itself
    ],
)
def test_layers_by_name_class_or_predicate(layers: Any, chosen: list[str]) -> None:
    model = build()
    plain = step(copy.deepcopy(model))
    with retape.enable(model, layers) as report:
        assert report.names == chosen
        assert_same_bits(step(model), plain)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ("layer.*", 'found no module called "layer.*" .* Did you mean "layers.'),
        (nn.Conv2d, "found no Conv2d in Model: nothing would be recomputed"),
        (lambda name, module: False, "no module for which the predicate is true"),
        ([], "found no module that is called"),
        ([3], "expected names, module classes or a predicate in `layers`, got 3"),
    ],
)
def test_nothing_to_recompute_is_an_error_that_names_candidates(layers: Any, text: str) -> None:
    model = build()
    with pytest.raises(retape.UsageError, match=text) as error:
        retape.enable(model, layers)
    if layers != [3]:
        assert "layers (3 x Block), heads (2 x Linear)" in str(error.value)
        assert "3 x Block, 1 x Model" in str(error.value)
    assert not len(retape.enabled(model))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "ful"}, 'no policy is called "ful"'),
        ({"method": "again"}, 'expected method="replay" or "rerun", got \'again\''),
        ({"use_reentrant": False}, 'use_reentrant, with method="replay"'),
        ({"method": "rerun", "policy": "cheap"}, "policy='cheap' with method=\"rerun\""),
        ({"through": "hook"}, 'through="forward" or through="huggingface", got \'hook\''),
    ],
)
def test_bad_options_are_usage_errors(options: dict[str, Any], text: str) -> None:
    model = build()
    with pytest.raises(retape.UsageError, match=text):
        retape.enable(model, **options)
    assert not len(retape.enabled(model))
