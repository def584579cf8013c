"""DTensors, as FSDP2 has them for parameters and gradients: a rank has a part, and placements say which."""

from __future__ import annotations

import sys
from typing import Any

import torch

from retape import _C


def is_dtensor(tensor: Any) -> bool:
    """Whoever has one has imported the module, which takes a while."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def part_of(parameter: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """In place of a parameter whose gradient is a DTensor: this rank's part, with the memory of that
    gradient's, and whether another rank has the same and counts it. Computing with the DTensor itself would be
    a call of all ranks of its mesh."""
    gradient: Any = parameter.grad
    for dimension, placement in enumerate(gradient.placements):
        if placement.is_partial():
            raise _C.UsageError(
                f"[clip_grad_norm] a gradient of shape {list(gradient.shape)} is Partial over "
                f"{_name(gradient.device_mesh, dimension)}: a norm of parts that are yet to be added is not that "
                "of their sum. Fix: reduce it first, gradient.redistribute(placements=[Replicate()])."
            )
    local = gradient.to_local()
    part = local.detach().requires_grad_()
    part.grad = local
    return part, _is_counted_elsewhere(gradient)


def _is_counted_elsewhere(gradient: Any) -> bool:
    """Where the mesh replicates, coordinate 0 of that dimension counts."""
    mesh = gradient.device_mesh
    return any(
        placement.is_replicate() and mesh.get_local_rank(dimension) != 0
        for dimension, placement in enumerate(gradient.placements)
    )


def _name(mesh: Any, dimension: int) -> str:
    names = mesh.mesh_dim_names
    return f'"{names[dimension]}"' if names else f"dimension {dimension} of its mesh"
