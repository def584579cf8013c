"""Arguments for an overload, made from its schema alone: many combinations, of which some are accepted."""

from __future__ import annotations

import random
import re
from typing import Any

import torch

SHAPES = ((3, 3), (4,), (2, 3, 4), (1, 2, 4, 4), (), (1, 2, 3, 4, 4), (2, 2), (2, 4, 4), (6,), (0,))
DTYPES = (
    (torch.float32, 10),
    (torch.int64, 4),
    (torch.bool, 2),
    (torch.float64, 1),
    (torch.complex64, 2),
    (torch.int32, 2),
    (torch.bfloat16, 1),
    (torch.uint8, 2),
    (torch.int8, 1),
)
INDICES = re.compile(
    r"ind(ex|ices)?$|^idx|offsets|lengths|targets?$|segment|batch_sizes|bag|counts"
)
MASKS = re.compile(r"mask|^condition$")
STRINGS = {
    "reduce": ("sum", "prod", "mean", "amax", "amin"),
    "mode": ("reduced", "complete", "r", "none"),
    "approximate": ("none", "tanh"),
    "padding": ("same", "valid"),
    "indexing": ("ij", "xy"),
    "UPLO": ("L", "U"),
    "side": ("left", "right"),
    "rounding_mode": ("floor", "trunc"),
    "driver": ("gels", "gelsd"),
    "ord": ("fro", "nuc"),
    "equation": ("ij,jk->ik", "ij->i"),
    "default": ("",),
}
INTS = {
    "dim": (0, 1, -1),
    "dim0": (0, -1),
    "dim1": (1, -2),
    "axis0": (0,),
    "axis1": (1,),
    "reduction": (0, 1, 2),
    "groups": (1, 2),
    "N": (2, 3),
    "C": (2,),
    "HxW": (16, 12, 9),
    "chunks": (1, 2),
    "split_size": (1, 2),
    "n": (2, 3),
    "k": (1, 2),
    "bins": (4,),
    "num_groups": (1, 2),
    "group": (1, 2),
    "interpolation_mode": (0, 1, 2),
    "padding_mode": (0, 1),
    "upscale_factor": (1, 2),
    "downscale_factor": (1, 2),
    "quant_min": (0,),
    "quant_max": (255,),
    "ch_axis": (0, 1),
    "axis": (0, 1),
    "zero_point": (0,),
    "num_weights": (3, 10),
    "padding_idx": (-1, 0),
    "hidden_size": (4,),
    "num_layers": (1,),
    "steps": (4,),
    "size": (2,),
    "end": (2, 5),
    "start": (0, 1),
    "length": (1, 2),
    "step": (1,),
    "num_embeddings": (4,),
    "embed_dim": (4,),
    "num_head": (2,),
    "num_heads": (2,),
    "n_fft": (4,),
    "high": (5,),
    "low": (0,),
    "low_int": (0,),
    "count": (4,),
    "ignore_index": (-100,),
    "blank": (0,),
    "dim_size": (4,),
}
LISTS = {
    "kernel_size": ([1], [2], [2, 2], [1, 1], [2, 2, 2]),
    "stride": ([1], [1, 1], [2, 2], [1, 1, 1], [3, 1], [12, 4, 1]),
    "padding": ([0], [0, 0], [1, 1], [0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
    "pad": ([1, 1], [1, 1, 1, 1], [0, 1]),
    "dilation": ([1], [1, 1], [1, 1, 1]),
    "output_padding": ([0], [0, 0], [0, 0, 0]),
    "output_size": ([2], [2, 2], [2, 2, 2], [4, 4], [4], [1, 2, 4, 4], [3]),
    "dim": ([0], [1], [-1], [0, 1], [1, 2]),
    "dims": ([0], [1], [0, 1], [1, 0], [2, 0, 1]),
    "normalized_shape": ([3], [4], [3, 4], [4, 4]),
    "input_size": ([1, 2, 4, 4], [4, 4], [2, 4, 4], [1, 2, 4], [1, 2, 3, 4, 4]),
    "self_size": ([1, 2, 4, 4],),
}
ANY_LIST = (
    [0],
    [1],
    [2],
    [3],
    [4],
    [1, 1],
    [2, 2],
    [3, 3],
    [0, 1],
    [4, 4],
    [2, 3, 4],
    [1, 2, 4, 4],
    [1, 1, 1],
    [9],
    [6],
    [],
)


class Unmakeable(Exception):
    """No rule makes an argument of this type."""


class Maker:
    """Draws arguments. Tensors of one call mostly share shape and dtype, which most ops want."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(self._random.randrange(1 << 30))

    def call(self, op: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._shape = self._random.choices(SHAPES, weights=(6, 4, 4, 4, 2, 2, 1, 1, 1, 1))[0]
        self._dtype = self._random.choices([d for d, _ in DTYPES], weights=[w for _, w in DTYPES])[
            0
        ]
        self._strays = self._random.random() < 0.35
        args, kwargs = [], {}
        for argument in op._schema.arguments:
            if argument.has_default_value() and self._random.random() < 0.4:
                if argument.kwarg_only:
                    continue
                value = argument.default_value
            else:
                value = self._value(argument.name, str(argument.real_type))
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def tensor(self, name: str = "") -> torch.Tensor:
        shape, dtype = self._shape, self._dtype
        if self._strays and self._random.random() < 0.5:
            shape = self._random.choice(SHAPES)
        if INDICES.search(name) and self._random.random() < 0.85:
            dtype = torch.int64
            if self._random.random() < 0.5:
                shape = self._random.choice(((), (4,), (3, 3), (2,), (3,)))
        elif MASKS.search(name) and self._random.random() < 0.7:
            dtype = self._random.choice((torch.bool, torch.bool, torch.float32, torch.uint8))
        elif self._strays and self._random.random() < 0.15:
            dtype = self._random.choice(DTYPES)[0]
        if (
            name
            in (
                "running_mean",
                "running_var",
                "weight",
                "bias",
                "mean",
                "invstd",
                "save_mean",
                "save_invstd",
                "scale",
                "zero_point",
            )
            and self._random.random() < 0.6
        ):
            shape = (self._shape[1],) if len(self._shape) > 1 else (4,)
        if dtype.is_floating_point or dtype.is_complex:
            return (
                torch.rand(shape, generator=self._generator, dtype=torch.float32).add(0.1).to(dtype)
            )
        top = 2 if dtype == torch.bool else 3
        return torch.randint(0, top, shape, generator=self._generator).to(dtype)

    def _value(self, name: str, kind: str) -> Any:
        rand = self._random
        if kind.startswith("Optional["):
            return None if rand.random() < 0.4 else self._value(name, kind[len("Optional[") : -1])
        if kind == "Tensor":
            return self.tensor(name)
        if kind == "List[Tensor]":
            return [self.tensor(name) for _ in range(rand.choice((1, 2, 3)))]
        if kind == "List[Optional[Tensor]]":
            return [self.tensor("index") for _ in range(rand.choice((1, 1, 2)))]
        if kind in ("int", "SymInt"):
            return rand.choice(INTS.get(name, (0, 1, 2, -1, 3, 4)))
        if kind in ("List[int]", "List[SymInt]"):
            known = LISTS.get(name)
            if known and rand.random() < 0.7:
                return list(rand.choice(known))
            return list(self._shape) if rand.random() < 0.3 else list(rand.choice(ANY_LIST))
        if kind == "bool":
            return rand.random() < 0.5
        if kind == "List[bool]":
            return [rand.random() < 0.6 for _ in range(rand.choice((2, 3, 3, 4)))]
        if kind == "float":
            return rand.choice((0.5, 1.0, 0.1, 2.0))
        if kind == "List[float]":
            return [rand.choice((0.5, 1.0, 2.0)) for _ in range(rand.choice((1, 2, 3)))]
        if kind in ("number", "Scalar"):
            return rand.choice((1, 2, 0.5, 0))
        if kind in ("List[number]", "List[Scalar]"):
            return [rand.choice((1, 2, 0.5)) for _ in range(rand.choice((1, 2, 3)))]
        if kind == "complex":
            return 1 + 2j
        if kind == "str":
            return rand.choice(STRINGS.get(name, STRINGS["default"]))
        if kind == "Device":
            return torch.device("cpu")
        if kind == "Generator":
            return torch.Generator().manual_seed(3)
        if kind == "ScalarType":
            return rand.choice((torch.float32, torch.float64, torch.int64, torch.bool))
        if kind == "Layout":
            return torch.strided
        if kind == "MemoryFormat":
            return rand.choice((torch.contiguous_format, torch.preserve_format))
        if kind == "Storage":
            return torch.zeros(64).untyped_storage()
        raise Unmakeable(kind)
