"""Which modules of a model are its layers: by rule, by name, by class, or by a predicate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from torch import nn

from retape._C import UsageError
from retape._text import closest

Predicate = Callable[[str, nn.Module], bool]
LayersLike = str | type[nn.Module] | Predicate | Iterable[str | type[nn.Module]] | None
Named = tuple[str, nn.Module]


class NoLayers(UsageError):
    """`found` and `instead`: what is missing, and what there is, for whoever knows another way out than
    `retape.enable` does."""

    def __init__(self, found: str, instead: str = "", fix: str = "") -> None:
        super().__init__(f"[enable] {found}: nothing would be recomputed. {instead}. {fix}")
        self.found, self.instead = found, instead


def choose(model: nn.Module, layers: LayersLike) -> list[Named]:
    """The chosen modules with their qualified names, each once, in the model's order."""
    if layers is None:
        chosen = list(stacked(model))
        what = "no list of layers"
    elif callable(layers) and not isinstance(layers, type):
        chosen = _called([named for named in model.named_modules() if layers(*named)])
        what = "no module for which the predicate is true"
    else:
        wanted = [layers] if isinstance(layers, str | type) else list(layers)
        matchers = [_matcher(model, item) for item in wanted]
        named = model.named_modules()
        chosen = _called([each for each in named if any(matches(*each) for matches in matchers)])
        what = "no module that is called in `layers`"
    if not chosen:
        _nothing(model, what)
    return chosen


def stacked(model: nn.Module) -> Iterator[Named]:
    """The blocks of every `nn.ModuleList` that looks like a stack of layers.

    A block runs (its class has a `forward`), has parameters and is built of other modules: lists of
    Linear, norms or embeddings are no stacks. A list is a stack when two of its blocks are of one
    class, or when it has one element only. Blocks are not searched for stacks inside them.
    """
    found: dict[nn.Module, str] = {}
    for name, module in _stacked(model, ""):
        found.setdefault(module, name)
    return ((name, module) for module, name in found.items())


def _stacked(module: nn.Module, name: str) -> Iterator[Named]:
    blocks: set[nn.Module] = set()
    if isinstance(module, nn.ModuleList):
        candidates = [child for child in module if _is_block(child)]
        per_class = Counter(type(child) for child in candidates)
        if candidates and (len(module) == 1 or max(per_class.values()) > 1):
            blocks.update(candidates)
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if child in blocks:
            yield path, child
        else:
            yield from _stacked(child, path)


def _runs(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _is_block(module: nn.Module) -> bool:
    built_of_modules = next(module.children(), None) is not None
    return _runs(module) and built_of_modules and next(module.parameters(), None) is not None


def _called(chosen: list[Named]) -> list[Named]:
    """A list of modules stands for its elements: the list itself is never called."""
    result: dict[nn.Module, str] = {}
    for name, module in chosen:
        if _runs(module):
            result.setdefault(module, name)
            continue
        for key, child in module.named_children():
            if _runs(child):
                result.setdefault(child, f"{name}.{key}")
    return [(name, module) for module, name in result.items()]


def _matcher(model: nn.Module, item: str | type[nn.Module]) -> Predicate:
    if isinstance(item, type) and issubclass(item, nn.Module):
        what = f"no {item.__name__}"

        def matches(name: str, module: nn.Module) -> bool:
            return isinstance(module, item)
    elif isinstance(item, str):
        what = f'no module called "{item}"'
        pattern = re.compile(
            re.escape(item)
            .replace(r"\*\*\.", r"(?:.+\.)?")
            .replace(r"\*\*", ".+")
            .replace(r"\*", "[^.]*")
        )

        def matches(name: str, module: nn.Module) -> bool:
            return bool(name) and pattern.fullmatch(name) is not None
    else:
        raise UsageError(
            f"[enable] expected names, module classes or a predicate in `layers`, got {item!r}. "
            'Fix: layers="encoder.layers.*", layers=Block, or layers=lambda name, module: ...'
        )
    if not any(matches(*named) for named in model.named_modules()):
        _nothing(model, what, item if isinstance(item, str) else "")
    return matches


def _nothing(model: nn.Module, what: str, wanted: str = "") -> NoReturn:
    named = list(model.named_modules())
    lists = [
        f"{name} ({len(module)} x {type(module[0]).__name__})"
        for name, module in named
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)
    ]
    classes = Counter(type(module).__name__ for _, module in named if _is_block(module))
    blocks = [f"{count} x {name}" for name, count in classes.most_common()]
    close = closest(wanted, [name for name, _ in named]) if wanted else []
    raise NoLayers(
        f"found {what} in {type(model).__name__}",
        (f'Did you mean "{close[0]}"? ' if close else "")
        + f"Its lists: {some(lists)}. Its blocks: {some(blocks)}",
        'Fix: choose layers by name (layers="encoder.layers.*"), class or predicate; or put '
        '`with retape.recompute("full"):` around the forward pass, which needs no layers.',
    )


def some(items: list[str], most: int = 8) -> str:
    shown = ", ".join(items[:most]) or "none"
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
