"""`retape.eager()`: every front end is a plain call."""

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import retape


def body(x):
    return x.square().sin()


def test_a_scope_records_nothing():
    x = torch.ones(3, requires_grad=True)
    with retape.eager(), retape.recompute() as scope:
        assert retape.is_eager() and not retape.is_recording()
        y = body(x)
    y.sum().backward()
    assert scope.stats.ops_recorded == scope.stats.ops_replayed == 0
    assert not retape.is_eager()


@pytest.mark.parametrize(
    "options", [{}, {"method": "rerun"}, {"method": "rerun", "use_reentrant": True}]
)
def test_a_checkpointed_function_runs_once(options):
    calls = []

    def counted(x):
        calls.append(retape.is_recording())
        return body(x)

    x = torch.ones(3, requires_grad=True)
    with retape.eager():
        y = retape.checkpoint(counted, x, **options)
    y.sum().backward()
    assert calls == [False]


def test_a_context_of_the_user_is_entered_and_a_selective_one_is_not():
    def selective():
        return create_selective_checkpoint_contexts(
            lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE
        )

    def autocast():
        return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)

    x = torch.ones(3, 3, requires_grad=True)
    with retape.eager():
        assert retape.checkpoint(torch.mm, x, x, context_fn=autocast).dtype == torch.bfloat16
        retape.checkpoint(torch.mm, x, x, context_fn=selective, method="rerun").sum().backward()
    assert x.grad is not None


def test_an_enabled_layer_is_plain_and_says_so():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    report = retape.enable(model, ["0"])
    with retape.eager():
        model(torch.ones(2, 3)).sum().backward()
    assert report.calls == 0
    assert report.idle == {"0": "called under retape.eager() only"}
    with pytest.warns(UserWarning, match="called under retape.eager"):
        report.disable()


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_no_output_is_discarded(backend):
    x = torch.ones(3, requires_grad=True)
    with retape.eager():
        ckpt = retape.OutputDiscardCheckpoint(backend)
        h = ckpt.checkpoint(body, x)
        z = h.cos()
        assert ckpt.discard_output_and_register_recompute(z) == 0
    assert h.untyped_storage().nbytes() > 0
    z.sum().backward()
    assert x.grad is not None


def test_it_nests_and_can_be_entered_again():
    eager = retape.eager()
    with eager, eager:
        pass
    with eager:
        assert retape.is_eager()
    assert not retape.is_eager()
