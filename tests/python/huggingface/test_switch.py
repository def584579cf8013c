"""Hugging Face's own switch with Retape behind it, and models whose flag is never touched."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from tests.python.bits import assert_same_bits
from tests.python.huggingface.models import CASES
from tests.python.huggingface.steps import assert_same_step, copy_step, step, summed_by_layer
from torch import nn

import retape

SHARED = {"T5", "Whisper"}  # why: test_models.py
SWITCHED = [name for name, case in CASES.items() if case.switch]
FLAG_DOES_NOTHING = [name for name, case in CASES.items() if not case.switch]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    retape.huggingface.uninstall()


def through_the_switch(model: nn.Module) -> retape.Enabled:
    return retape.enable(model, through="huggingface")


def dictionaries(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Everything that is in the modules; what forward itself leaves there (Qwen3-VL) as bits."""
    return {
        name: {
            key: dict(value) if isinstance(value, dict) else bits(value)
            for key, value in vars(module).items()
        }
        for name, module in model.named_modules()
    }


def bits(value: Any) -> Any:
    return (value.dtype, value.tolist()) if torch.is_tensor(value) else value


def flagged(model: nn.Module) -> set[str]:
    return {n for n, m in model.named_modules() if getattr(m, "gradient_checkpointing", False)}


# ---- retape.enable(model, through="huggingface") ----------------------------------------------


@pytest.mark.parametrize("name", SWITCHED)
def test_switch_gives_the_step_of_eager(name: str) -> None:
    case = CASES[name]
    ours, report = copy_step(case.build(0.2), case.forward(), through_the_switch)
    assert_same_step(step(case.build(0.2), case.forward()), ours)
    assert report.stats.ops_replayed > 0
    assert not report.idle


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non_reentrant", "reentrant"])
@pytest.mark.parametrize("name", SWITCHED)
def test_switch_calls_layers_again_on_request(name: str, use_reentrant: bool) -> None:
    case = CASES[name]
    model = case.build(0.2, use_cache=not use_reentrant)
    other = copy.deepcopy(model)
    with retape.huggingface.install(method="rerun"):
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    report = retape.enabled(model)
    if use_reentrant and name in SHARED:
        summed_by_layer(other, report.names)
    plain = step(other, case.forward())
    ours = step(model, case.forward())
    assert_same_step(plain, ours)
    assert report.reruns > 0


@pytest.mark.parametrize("name", FLAG_DOES_NOTHING)
def test_flag_that_would_do_nothing_is_an_error(name: str) -> None:
    """CLVP and JanusVQVAE say that they support the flag; no layer of theirs looks at it."""
    model = CASES[name].build()
    assert model.supports_gradient_checkpointing
    with pytest.raises(retape.UsageError, match="nothing would be recomputed. Fix: retape.enable"):
        through_the_switch(model)
    with retape.huggingface.install(), pytest.raises(retape.UsageError, match="nothing would be"):
        model.gradient_checkpointing_enable()
    assert flagged(model) == set()


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "forward") for name in CASES] + [(name, "huggingface") for name in SWITCHED],
)
def test_disable_leaves_the_model_as_it_was(name: str, way: str) -> None:
    case = CASES[name]
    model = case.build()
    step(model, case.forward())
    before, names = dictionaries(model), list(model.state_dict())
    report = retape.enable(model, through=way)
    assert list(model.state_dict()) == names
    step(model, case.forward())
    retape.disable(model)
    after = dictionaries(model)
    assert after.keys() == before.keys()
    changed = [name for name in before if after[name] != before[name]]
    assert changed == []
    calls = report.calls
    step(model, case.forward())
    assert report.calls == calls


def test_only_layers_get_the_flag_so_the_kernel_of_t5_stays() -> None:
    case = CASES["T5"]
    model = case.build()
    report = through_the_switch(model)
    assert flagged(model) == set(report.names)
    assert model.is_gradient_checkpointing
    model.gradient_checkpointing_enable()
    assert len(flagged(model)) > len(report)


def test_no_hooks_stay_behind() -> None:
    """Hugging Face's enable hooks the embeddings, each time anew, and its disable leaves that."""
    case = CASES["Llama"]
    model, theirs = case.build().requires_grad_(False), case.build().requires_grad_(False)
    embeddings = model.get_input_embeddings()
    with retape.huggingface.install():
        for _ in range(3):
            model.gradient_checkpointing_enable()
            model.gradient_checkpointing_disable()
    assert len(embeddings._forward_hooks) == 0
    assert not case.forward()(model)[0].requires_grad
    for _ in range(3):
        theirs.gradient_checkpointing_enable()
        theirs.gradient_checkpointing_disable()
    assert len(theirs.get_input_embeddings()._forward_hooks) == 3
    assert case.forward()(theirs)[0].requires_grad


def test_takes_over_where_hugging_face_is_on_already_and_gives_it_back() -> None:
    case = CASES["Llama"]
    model = case.build(0.1)
    model.gradient_checkpointing_enable()
    before = flagged(model)
    layer = model.model.layers[0]
    function = layer._gradient_checkpointing_func
    with through_the_switch(model) as report:
        ours = step(model, case.forward())
    assert report.stats.ops_replayed > 0
    assert_same_step(step(case.build(0.1), case.forward()), ours)
    assert flagged(model) == before
    assert layer._gradient_checkpointing_func is function


def test_without_the_switch_a_flag_that_is_on_is_an_error() -> None:
    model = CASES["Llama"].build()
    model.gradient_checkpointing_enable()
    with pytest.raises(retape.UsageError, match="gradient checkpointing is on: model"):
        retape.enable(model)
    model.gradient_checkpointing_disable()
    retape.enable(model)


def test_layers_of_both_ways_in_one_model() -> None:
    case = CASES["Qwen3VL"]
    model = case.build(0.1)
    switched = through_the_switch(model)
    other = retape.enable(model, "**.deepstack_merger_list")  # lists that the switch leaves out
    assert (len(switched), len(other)) == (4, 2)
    assert_same_step(step(case.build(0.1), case.forward()), step(model, case.forward()))
    assert not retape.enabled(model).idle
    with pytest.raises(retape.UsageError, match="enabled already: model.visual.blocks.0"):
        retape.enable(model)


def test_flag_that_comes_on_later_is_reported() -> None:
    case = CASES["Llama"]
    model = case.build()
    report = retape.enable(model)
    model.gradient_checkpointing_enable()
    plain = step(case.build(), case.forward())
    assert_same_step(plain, step(model, case.forward()))
    assert report.calls == 0
    with pytest.warns(UserWarning, match="inside Hugging Face's own checkpointing"):
        retape.disable(model)


def test_switch_works_in_train_mode_only_and_says_so() -> None:
    case = CASES["Llama"]
    model = case.build()
    with pytest.raises(retape.UsageError, match="works in train mode only"):
        retape.enable(model, through="huggingface", in_eval=True)
    assert flagged(model) == set()
    report = retape.enable(model.eval(), in_eval=True)
    plain = step(case.build().eval(), case.forward())
    assert_same_step(plain, step(model, case.forward()))
    assert report.stats.ops_replayed > 0


def test_layers_of_the_switch_can_be_chosen() -> None:
    model = CASES["PaliGemma"].build()
    with retape.enable(model, "**.language_model.layers", through="huggingface") as report:
        assert report.names == [f"model.language_model.layers.{i}" for i in range(2)]
    with pytest.raises(retape.UsageError, match="no layer that Hugging Face's switch reaches"):
        retape.enable(model, nn.Embedding, through="huggingface")


@pytest.mark.parametrize("way", ["forward", "huggingface"])
def test_copies_are_enabled_for_themselves(way: str) -> None:
    case = CASES["Llama"]
    model = case.build(0.1)
    plain = step(case.build(0.1), case.forward())
    report = retape.enable(model, through=way)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        own = retape.enabled(each)
        assert own.names == report.names
        assert_same_step(plain, step(each, case.forward()))
        assert own.stats.ops_replayed > 0
        retape.disable(each)
        assert not len(retape.enabled(each))
    assert report.calls == 0
    assert all(parameter.grad is None for parameter in model.parameters())


class OldLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return hidden + self.linear(hidden).tanh() * scale


class OldModel(hf.PreTrainedModel):
    """As models on the hub are written: the stack itself asks for the function."""

    config_class = hf.PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: hf.PreTrainedConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList([OldLayer(8) for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden = self._gradient_checkpointing_func(layer.__call__, hidden, 0.5)
            else:
                hidden = layer(hidden, 0.5)
        return hidden


def test_models_that_ask_for_the_function_themselves() -> None:
    torch.manual_seed(0)
    model = OldModel(hf.PreTrainedConfig()).train()
    hidden = torch.randn(2, 8)

    def forward(model: nn.Module) -> tuple[torch.Tensor, dict]:
        return model(hidden).square().mean(), {}

    ours, report = copy_step(model, forward, through_the_switch)
    assert_same_step(step(model, forward), ours)
    assert report.calls == 3
    assert report.stats.ops_replayed > 0


# ---- retape.huggingface.install() -------------------------------------------------------------


def test_install_and_uninstall_restore_the_methods() -> None:
    methods = ("gradient_checkpointing_enable", "gradient_checkpointing_disable")
    before = [getattr(hf.PreTrainedModel, name) for name in methods]
    with retape.huggingface.install():
        assert [getattr(hf.PreTrainedModel, name) for name in methods] != before
        with pytest.raises(retape.UsageError, match="installed already"):
            retape.huggingface.install()
    assert [getattr(hf.PreTrainedModel, name) for name in methods] == before
    with pytest.raises(retape.UsageError, match="no policy is called"):
        retape.huggingface.install(policy="ful")
    assert [getattr(hf.PreTrainedModel, name) for name in methods] == before


@pytest.mark.parametrize(
    "options", [None, {"use_reentrant": False}, {"use_reentrant": True}, {"policy": "cheap"}]
)
def test_installed_enable_replays(options: dict[str, Any] | None) -> None:
    case = CASES["Llama"]
    model = case.build(0.1)
    with retape.huggingface.install():
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        report = retape.enabled(model)
        assert len(report) == 2
        ours = step(model, case.forward())
        model.gradient_checkpointing_disable()
    assert_same_step(step(case.build(0.1), case.forward()), ours)
    assert report.stats.ops_replayed > 0
    assert not model.is_gradient_checkpointing


def test_installed_enable_may_be_called_again_and_takes_every_nth_layer() -> None:
    model = CASES["Zamba"].build()
    with retape.huggingface.install():
        model.gradient_checkpointing_enable()
        every = retape.enabled(model).names
        model.gradient_checkpointing_enable(every_n_layers=2)
        assert retape.enabled(model).names == every[::2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offload": True}, "Retape has no offload"),
        ({"gradient_checkpointing_kwargs": {"reentrant": False}}, "Retape has no reentrant"),
        ({"gradient_checkpointing_kwargs": {"context_fn": list}}, "context_fn is for a second"),
    ],
)
def test_installed_enable_refuses_what_it_can_not_do(options: dict, text: str) -> None:
    model = CASES["Llama"].build()
    with retape.huggingface.install(), pytest.raises(retape.UsageError, match=text):
        model.gradient_checkpointing_enable(**options)
    assert flagged(model) == set()


def test_installed_disable_still_ends_hugging_faces_own() -> None:
    model = CASES["Llama"].build()
    model.gradient_checkpointing_enable()
    with retape.huggingface.install():
        model.gradient_checkpointing_disable()
    assert flagged(model) == set()


def test_lora_model_of_peft() -> None:
    case = CASES["Llama"]

    def lora() -> nn.Module:
        torch.manual_seed(0)
        config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(case.build(0.1), config).train()

    plain = step(lora(), case.forward())
    assert len(plain.live) == 8
    assert_same_step(plain, copy_step(lora(), case.forward(), retape.enable)[0])
    model = lora()
    with retape.huggingface.install():
        model.gradient_checkpointing_enable()
        report = retape.enabled(model)
        assert_same_step(plain, step(model, case.forward()))
    assert report.stats.ops_replayed > 0


def train(folder: Path, **arguments: Any) -> tuple[nn.Module, retape.Enabled]:
    case = CASES["Llama"]
    model = case.build(0.1)
    ids = case.inputs()["input_ids"]
    data = [{"input_ids": row, "labels": row} for row in ids] * 3
    settings = hf.TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
        **arguments,
    )
    hf.Trainer(model, settings, train_dataset=data).train()
    return model, retape.enabled(model)


def test_trainer_with_gradient_checkpointing_true(tmp_path: Path) -> None:
    plain, _ = train(tmp_path)
    with retape.huggingface.install():
        ours, report = train(
            tmp_path,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
    assert_same_bits(dict(ours.state_dict()), dict(plain.state_dict()), "weights")
    assert report.calls == 3 * len(report) > 0
    assert report.stats.ops_replayed > 0
    begin = CASES["Llama"].build(0.1).state_dict()
    assert not torch.equal(begin["lm_head.weight"], plain.state_dict()["lm_head.weight"])
