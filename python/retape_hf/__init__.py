"""Hugging Face architectures as subjects: tiny, random, in train mode, with one batch. No download.

>>> names = architectures()                     # every one in the installed transformers
>>> model, inputs = build("GPTBigCode")         # or a class: build("BertForMultipleChoice")
>>> loss(model(**inputs)).backward()

Raises NotBuilt, with the reason, for what cannot be built. Registered as the entry point `hf` in the
group `retape.subjects`; transformers is imported only when a subject is asked for.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from retape._step import losses_of
from retape.subjects.find import NotBuilt

# Parameters of these have no gradient for unknown reasons, so they are not excused.
UNEXPLAINED = {"Encodec", "ZoeDepth"}


def architectures() -> list[str]:
    """Names as `build` takes them: of the config classes that have a model to train."""
    _transformers("architectures")
    from retape_hf.heads import heads

    return list(heads())


def version() -> str:
    return _transformers("version").__version__


def knows(name: str) -> bool:
    """Whether `build` can be asked for it: an architecture, or a model class of transformers."""
    found = getattr(_transformers(name), name, None)
    return name in architectures() or (isinstance(found, type) and issubclass(found, nn.Module))


def make(name: str, dtype: torch.dtype | None, seed: int) -> tuple[nn.Module, Any, dict[str, Any]]:
    """What `retape.verify` takes: the model, its inputs, and options."""
    model, inputs = build(name, dtype or torch.float32, seed)
    options: dict[str, Any] = {"may_be_dead": dead_parameters(name, model, inputs)}
    if _rule(name).loss_per_sample:
        options["loss"] = loss
    return model, inputs, options


def build(
    name: str, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[nn.Module, dict[str, Any]]:
    """A small model in train mode and keyword arguments for it. Same seed, same bits.

    name: one of `architectures()`, or a model class of transformers.
    Leaves the default generator unchanged. Raises NotBuilt.
    """
    hf = _transformers(name)
    from retape_hf.heads import head_of
    from retape_hf.not_built import NOT_BUILT

    if name in NOT_BUILT:
        raise NotBuilt(name, NOT_BUILT[name])
    rule = _rule(name)
    class_name = rule.model or head_of(name) or name
    model_class = getattr(hf, class_name, None)
    if model_class is None:
        raise NotBuilt(name, f"transformers {hf.__version__} has no class {class_name}")
    with torch.random.fork_rng(devices=[]), _silence(hf):
        try:
            model, inputs = _build(model_class, rule, dtype, seed)
            if not _loss_of_copy(model, inputs)[1].requires_grad:
                raise ValueError(
                    "its loss does not require a gradient: forward is for inference only"
                )
        except ImportError as error:
            raise NotBuilt(name, _missing(error)) from error
        except Exception as error:
            raise NotBuilt(name, f"{type(error).__name__}: {_first_line(error)}") from error
    return model, inputs


def dead_parameters(name: str, model: nn.Module, inputs: dict[str, Any]) -> tuple[str, ...]:
    """Parameters without a gradient, or with zeros, in a plain step: parts that the head or this batch
    does not use, or that no gradient can reach. Without them a verdict would always be vacuous."""
    if name in UNEXPLAINED:
        return ()
    with torch.random.fork_rng(devices=[]), _silence(_transformers(name)):
        copied, value = _loss_of_copy(model, inputs)
        try:
            value.backward()
        except Exception:  # verify reports it
            return ()
    leaves = {n: p.grad for n, p in copied.named_parameters() if p.requires_grad}
    dead = tuple(n for n, gradient in leaves.items() if gradient is None or not gradient.any())
    return dead if len(dead) < len(leaves) else ()  # without any gradient nothing is excused


def loss(outputs: Any) -> torch.Tensor:
    """What `retape.verify` runs backward from, as one number."""
    losses = [value.sum() for _, value in losses_of(outputs, None)]
    if not any(value.requires_grad for value in losses):
        raise ValueError("[subjects.hf] nothing that the model returned requires a gradient")
    return torch.stack(losses).sum()


def _rule(name: str) -> Any:
    from retape_hf.rules import RULES, Rule

    return RULES.get(name, Rule())


def _loss_of_copy(model: nn.Module, inputs: dict[str, Any]) -> tuple[nn.Module, torch.Tensor]:
    copied = copy.deepcopy(model)
    return copied, loss(copied(**copy.deepcopy(inputs)))


def _build(model_class: type, rule: Any, dtype: torch.dtype, seed: int) -> tuple[nn.Module, Any]:
    from retape_hf.inputs import batch_for
    from retape_hf.tiny_config import tiny

    torch.manual_seed(seed)
    config = tiny(model_class.config_class, rule.changes, rule.keep)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at 0, and so would their gradients
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    model.float().train()
    torch.manual_seed(seed + 1)
    inputs = batch_for(model, rule.early)
    if rule.inputs:
        inputs = rule.inputs(model, inputs)
    return model.to(dtype).train(), {key: _cast(value, dtype) for key, value in inputs.items()}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if torch.is_tensor(value) and value.is_floating_point():
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return value


def _transformers(what: str) -> Any:
    try:
        import transformers
    except Exception as error:
        raise ImportError(
            f"[subjects.hf] {what}: expected the package transformers, got {error}. "
            "Fix: pip install transformers, or 'retape[hf]'"
        ) from error
    return transformers


@contextlib.contextmanager
def _silence(hf: Any) -> Iterator[None]:
    """Small vocabularies make every config warn."""
    level = hf.logging.get_verbosity()
    hf.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.logging.set_verbosity(level)


def _missing(error: ImportError) -> str:
    packages = re.findall(r"requires the (\w+) library", str(error))
    return f"needs the package {' and '.join(packages)}" if packages else _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines[1:] if "validation error" in str(error) and len(lines) > 1 else lines
    return lines[0][:200] if lines else type(error).__name__
