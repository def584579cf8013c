"""Overloads that are not called with arguments made from their schemas, each with its reason."""

_MISFIT = (
    "checks no shapes, and reads outside of memory that it allocates itself if they do not fit"
)

REFUSED: dict[str, str] = {
    "aten::_native_batch_norm_legit_functional": _MISFIT,
    "aten::_weight_norm_interface": _MISFIT,
    "aten::_weight_norm_interface.out": _MISFIT,
    "aten::_weight_norm_interface_backward": _MISFIT,
    "aten::_weight_norm_interface_backward.out": _MISFIT,
}
