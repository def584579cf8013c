"""Backward over a batch of gradients: `is_grads_batched`, vmap over a vjp, vectorized jacobians."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf
from torch import Tensor, nn


def with_dropout(x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.5).exp() * 2


def with_noise(x: Tensor) -> Tensor:
    return (x * torch.randn(4) + torch.rand(4)).sin().cos()


def with_a_private_generator(x: Tensor) -> Tensor:
    noise = torch.empty(4).bernoulli_(0.5, generator=torch.Generator().manual_seed(1))
    return (x * noise).sin() * noise.exp()


def with_in_place_ops(x: Tensor) -> Tensor:
    h = x * 2
    h.sin_().mul_(3)
    return h.cos()


def with_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x.exp().view(2, 2), (2,)).view(4).tanh()


def with_batch_norm(x: Tensor) -> Tensor:
    mean, var = torch.zeros(2), torch.ones(2)
    return F.batch_norm(x.sin().view(2, 2), mean, var, training=True).view(4).tanh()


def with_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(F.gelu(x * 2), 0)


def with_a_product(x: Tensor) -> Tensor:
    return (x.view(2, 2) @ x.view(2, 2).cos()).view(4).sigmoid()


REGIONS = pytest.mark.parametrize(
    "region",
    [
        with_dropout,
        with_noise,
        with_a_private_generator,
        with_in_place_ops,
        with_norm,
        with_batch_norm,
        with_softmax,
        with_a_product,
    ],
)


@WAYS
@REGIONS
def test_gradients_in_a_batch(way: Way, region) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(region, x)
        (rows,) = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)
        return rows, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
@REGIONS
def test_gradients_in_a_batch_and_then_one_by_one(way: Way, region) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(region, x)
        many = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True, retain_graph=True)
        one = torch.autograd.grad(y, x, torch.ones(4), retain_graph=True)
        again = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)
        return many, one, again, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
@REGIONS
def test_vmap_over_a_vjp_of_a_graph(way: Way, region) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(region, x)

        def vjp(row: Tensor) -> Tensor:
            return torch.autograd.grad(y, x, row, retain_graph=True)[0]

        return torch.func.vmap(vjp)(torch.eye(4)), torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
@REGIONS
def test_vmap_over_a_vjp_of_torch_func(way: Way, region) -> None:
    def program(way: Way):
        _, vjp = torch.func.vjp(lambda x: way(region, x), leaf(4).detach())
        return torch.func.vmap(vjp)(torch.eye(4)), torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
@REGIONS
def test_a_vectorized_jacobian(way: Way, region) -> None:
    def program(way: Way):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: way(region, x), leaf(4).detach(), vectorize=True
        )
        return jacobian, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
def test_gradients_of_parameters_in_a_batch(way: Way) -> None:
    def program(way: Way):
        layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5), nn.Linear(4, 4))
        y = way(layers, leaf(3, 4))
        rows = torch.eye(12).view(12, 3, 4)
        grads = torch.autograd.grad(y, list(layers.parameters()), rows, is_grads_batched=True)
        return grads, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
def test_a_batch_with_create_graph(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(with_dropout, x)
        (rows,) = torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True, create_graph=True)
        rows.sum().backward()
        return rows.detach(), x.grad, torch.get_rng_state()

    assert_as_eager(program, way)
