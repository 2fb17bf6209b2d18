"""CUDA's autocast for fake tensors, which are CPU tensors to torch.

Here, ``torch.autocast("cuda")`` enables the CPU's autocast, which has other lists of operators. Operators that only
CUDA casts are registered at the CPU's autocast key. Operators that only the CPU casts fall through, such as
``cross_entropy_loss``, so that its softmax stays in half precision.

Source of the lists: aten/src/ATen/autocast_mode.h of torch 2.13, and torch's registered operators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from gpuledger.simulate.gpu.patches import Patches

_KEY, _CUDA_KEY = "AutocastCPU", "AutocastCUDA"

IN_FLOAT32 = (
    "__pow__.Scalar", "__rpow__.Scalar", "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2",
    "log1p", "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm",
    "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "norm.Scalar",
    "norm.ScalarOpt_dim", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
"""Operators that CUDA's autocast runs in float32 (AT_FORALL_FP32, and ``norm``, which gets it as its dtype)."""

WITH_DTYPE = {
    "prod": 1, "prod.dim_int": 3, "softmax.int": 2, "log_softmax.int": 2, "cumprod": 2, "cumsum": 2, "sum": 1,
    "sum.dim_IntList": 3, "linalg_vector_norm": 4, "linalg_matrix_norm": 4, "linalg_matrix_norm.str_ord": 4,
}  # fmt: skip
"""Operators that get float32 as their result's dtype, and the position of ``dtype`` (AT_FORALL_FP32_SET_OPT_DTYPE)."""

IN_HALF = ("addmv", "addr", "mv", "prelu", "convolution", "chain_matmul", "linalg_multi_dot")
"""Operators that CUDA runs in half precision and the CPU does not (AT_FORALL_LOWER_PRECISION_FP)."""

WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "tensordot", "scatter_add")
"""Operators that run in the widest type among their arguments (AT_FORALL_PROMOTE)."""


def install_autocast(patches: Patches) -> Callable[[], None]:
    """Install CUDA's autocast. Return a function that removes it."""
    library = torch.library.Library("aten", "IMPL", _KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in IN_FLOAT32:
            _register(library, name, _in_float32)
        for name in WITH_DTYPE:
            _register(library, name, _with_dtype)
        for name in IN_HALF:
            _register(library, name, _in_half)
        for name in WIDEST:
            _register(library, name, _in_widest)
        for name in _left_alone_by_cuda():
            library.impl(name, torch.library.fallthrough_kernel, allow_override=True)
    _patch_entrances(patches)
    return library._destroy


def _register(library: Any, name: str, make: Callable[[Any, str], Any]) -> None:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if operator is not None and is_cast_by_cuda(name):
        library.impl(name, make(operator, name), allow_override=True)


def is_cast_by_cuda(name: str) -> bool:
    """Return whether this version of torch casts an operator that is in a list. Versions before 2.13 cast fewer."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _CUDA_KEY)


def _left_alone_by_cuda() -> list[str]:
    """Return the operators that only the CPU's autocast casts."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return [name.removeprefix("aten::") for name in names if has_kernel(name, _KEY) and not has_kernel(name, _CUDA_KEY)]


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(values: Any, dtype: torch.dtype) -> list[Any]:
    return [value.to(dtype) if _eligible(value) and value.dtype != dtype else value for value in values]


def without_autocast() -> Any:
    """Return a context in which nothing is cast."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _in_float32(operator: Any, _name: str) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            return operator(*_cast(args, torch.float32), **kwargs)

    return run


def _in_half(operator: Any, _name: str) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            return operator(*_cast(args, torch.get_autocast_dtype("cpu")), **kwargs)

    return run


def _in_widest(operator: Any, _name: str) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            floats = [value.dtype for value in args if _eligible(value)]
            halves = {dtype for dtype in floats if dtype != torch.float32}
            wide = torch.float32 in floats or len(halves) > 1
            return operator(*(_cast(args, torch.float32) if wide else args), **kwargs)

    return run


def _with_dtype(operator: Any, name: str) -> Any:
    place = WITH_DTYPE[name]

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            given = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
            if given or not _eligible(args[0]):
                return operator(*args, **kwargs)
            if name.endswith("softmax.int"):
                return _fused_softmax(name, args[0], args[1])
            return operator(*args, **{**kwargs, "dtype": torch.float32})

    return run


def _fused_softmax(name: str, tensor: Any, dim: int) -> Any:
    """Convert float16 in the kernel; bfloat16 is copied before. Source: aten/src/ATen/native/SoftMax.cpp."""
    operator = torch.ops.aten._softmax if name.startswith("softmax") else torch.ops.aten._log_softmax
    return operator(tensor.float() if tensor.dtype == torch.bfloat16 else tensor, dim, tensor.dtype == torch.float16)


def _patch_entrances(patches: Patches) -> None:
    plain_init, plain_enabled, plain_dtype = (
        torch.autocast.__init__,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
    )
    plain_enter, plain_exit = torch.autocast.__enter__, torch.autocast.__exit__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        self._of_cpu = device_type == "cpu"
        if dtype is None and device_type == "cuda":
            dtype = torch.float16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain_init(self, "cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def enter(self: Any) -> Any:
        if self._of_cpu:
            return self
        was_enabled = plain_enabled("cpu")
        entered = plain_enter(self)  # type: ignore[no-untyped-call]
        self.prev = was_enabled  # torch asked for that of the CPU, which a program sees as disabled
        return entered

    def leave(self: Any, *error: Any) -> Any:
        return None if self._of_cpu else plain_exit(self, *error)

    def is_enabled(device_type: str = "cuda") -> bool:
        return device_type == "cuda" and plain_enabled("cpu")

    def dtype_of(device_type: str) -> Any:
        return plain_dtype("cpu")

    patches.put(torch.autocast, "__init__", init)
    patches.put(torch.autocast, "__enter__", enter)
    patches.put(torch.autocast, "__exit__", leave)
    patches.put(torch, "is_autocast_enabled", is_enabled)
    patches.put(torch, "get_autocast_dtype", dtype_of)
    patches.put(torch, "get_autocast_gpu_dtype", lambda: plain_dtype("cpu"))
    patches.put(torch.amp.autocast_mode, "is_autocast_available", lambda device_type: True)
