"""Operators that need a contiguous copy of their data, such as those on pictures in channels_last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.temporaries.spaces import Rule, Spaces, bytes_of, contiguous_copy

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice

aten = torch.ops.aten


def _copy_of_first(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    copied = contiguous_copy(args[0])
    return Spaces("contiguous copy", before=copied) if copied else None


def _copy_of_data(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    copied = contiguous_copy(args[1])
    return Spaces("contiguous copy", before=copied) if copied else None


def _copies_of_both(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    copied = (*contiguous_copy(args[0]), *contiguous_copy(args[1]))
    return Spaces("contiguous copy", before=copied) if copied else None


def _resampled(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A contiguous copy of the data, and a contiguous result before it is channels_last."""
    data, (height, width) = args[0], args[1]
    copied = contiguous_copy(data)
    result_bytes = data.shape[0] * data.shape[1] * height * width * data.element_size()
    return Spaces("contiguous copy", before=(*copied, result_bytes)) if copied else None


def _columns(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """A contiguous copy, and a result of the data's size before it is resized. Source: native/cuda/Im2Col.cu."""
    return Spaces("unfold", before=(*contiguous_copy(args[0]), bytes_of(args[0])))


RULES: dict[Any, Rule] = {
    aten._softmax.default: _copy_of_first,
    aten._log_softmax.default: _copy_of_first,
    aten.im2col.default: _columns,
    aten.native_layer_norm.default: _copy_of_first,
    aten.native_layer_norm_backward.default: _copies_of_both,
    aten.adaptive_max_pool2d.default: _copy_of_first,
    aten.adaptive_max_pool2d_backward.default: _copy_of_data,
    aten.upsample_bicubic2d_backward.default: _copy_of_first,
    aten._upsample_bilinear2d_aa.default: _resampled,
    aten._upsample_bilinear2d_aa_backward.default: _copy_of_first,
    aten._upsample_bicubic2d_aa.default: _resampled,
    aten._upsample_bicubic2d_aa_backward.default: _copy_of_first,
    aten.reflection_pad2d.default: _copy_of_first,
}

CONTIGUOUS_RESULTS = (
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.reflection_pad2d.default,
    aten.replication_pad2d.default,
)
"""Operators with a contiguous result on CUDA where the CPU keeps channels_last."""
