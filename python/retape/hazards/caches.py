"""Caches that a region writes and another one, or a later call, reads."""

from __future__ import annotations

import torch

from retape.hazards.hazard import Evidence, Way, gradients, hazard, leaf


class Towers:
    """A prefix that writes its keys to a cache, and a suffix that attends to them (as in pi05)."""

    def __init__(self) -> None:
        self.keys, self.out = leaf(8, 8, seed=1), leaf(8, 8, seed=2)
        self.queries = leaf(8, 8, seed=3)

    def prefix(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["keys"] = (x @ self.keys).tanh()
        return (x @ self.out).tanh()

    def suffix(self, y: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = (y @ self.queries) @ cache["keys"].T
        return scores.softmax(-1) @ cache["keys"]

    def gradients(self) -> dict[str, torch.Tensor | None]:
        return gradients(keys=self.keys, out=self.out, queries=self.queries)


@hazard(
    "A cached value changes",
    "A vision-language-action model caches keys in its prefix tower and quantises them before the "
    "action tower reads them; when the prefix loss goes backward first, the second call writes the "
    "unquantised keys back.",
    "OpenTau#202",
)
def cache_changed(way: Way) -> Evidence:
    model, cache = Towers(), {}
    x, y = leaf(6, 8, seed=4), leaf(5, 8, seed=5)
    words = way(model.prefix, x, cache)
    cache["keys"] = cache["keys"] * 0.5
    actions = way(model.suffix, y, cache)
    words.square().sum().backward(retain_graph=True)
    actions.square().sum().backward()
    return {
        "output": {"actions": actions.detach()},
        "gradient": {**model.gradients(), **gradients(x=x, y=y)},
        "buffer": {"cache": cache["keys"].detach()},
    }


@hazard(
    "One cache for two forwards",
    "DPO and contrastive losses run the model on two inputs before backward; the second call for "
    "the first input reads what the second input left in the cache.",
    "OpenTau#202",
    "unsloth-zoo#813",
)
def shared_cache(way: Way) -> Evidence:
    model, cache = Towers(), {}
    y, losses = leaf(5, 8, seed=5), []
    for seed in (6, 7):
        way(model.prefix, leaf(6, 8, seed=seed), cache)
        losses.append(way(model.suffix, y, cache).square().sum())
    (losses[0] - 0.5 * losses[1]).backward()
    grads = {**model.gradients(), **gradients(y=y)}
    del grads["out"]  # the prefix has no loss of its own here
    return {"gradient": grads, "buffer": {"cache": cache["keys"].detach()}}


@hazard(
    "A layer appends to its cache",
    "Decoding caches grow by what a layer adds; called again, the layer adds it twice (171 entries "
    "became 342). Libraries switch the cache off in training instead.",
    "transformers#28056",
    "LongLive#16",
    rerun_raises=True,
)
def cache_appended(way: Way) -> Evidence:
    model, x = Towers(), leaf(6, 8, seed=4)
    cache = {"keys": leaf(2, 8, seed=8).detach()}

    def layer(x: torch.Tensor) -> torch.Tensor:
        cache["keys"] = torch.cat([cache["keys"], (x @ model.keys).tanh()])
        return model.suffix(x, cache)

    out = way(layer, x)
    out.square().sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(keys=model.keys, queries=model.queries, x=x),
        "buffer": {"cache": cache["keys"].detach()},
    }
