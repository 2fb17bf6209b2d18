"""Whether an optimizer can keep its states in 8 bits, and whether they are of the size for which that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.model.manifest import OptimizerFacts, RankManifest

TORCHS_OWN = "torch.optim."
SHARE = 0.25
"""8-bit states take a quarter of 32-bit ones (Dettmers et al., 2022, 8-bit Optimizers)."""
LEAST_ELEMENTS = 4096
"""Elements of a parameter from which on bitsandbytes keeps its states in 8 bits (``min_8bit_size``)."""
SMALL_BYTES = 2.5
"""Bytes of the optimizer's state for each trained number up to which 8-bit states would save little."""
LARGE_BYTES = 16
"""Bytes of state for each weight in Adam with amsgrad and a 32-bit copy. Optimizers with more keep other things."""

_IN_8_BITS = frozenset(f"{TORCHS_OWN}{name}" for name in ("adagrad", "adam", "adamw", "rmsprop", "sgd"))
"""Modules of torch.optim with an optimizer that bitsandbytes has with 8-bit states (github.com/bitsandbytes-foundation/
bitsandbytes, bitsandbytes/optim)."""
_DEEPSPEEDS_OWN = "deepspeed."
_DEEPSPEEDS_IN_8_BITS = frozenset({"deepspeed.ops.adam.fused_adam", "deepspeed.ops.lion.fused_lion"})
"""Modules of DeepSpeed with an optimizer that one of bitsandbytes can replace: given to ``deepspeed.initialize``, with
``zero_allow_untested_optimizer``. The others compress what ranks send, or keep their state in host memory."""


def has_8_bit_form(one: OptimizerFacts) -> bool:
    """Return whether an optimizer can have 8-bit states. True for one of another library: it may have its own way."""
    if one.step_module.startswith(_DEEPSPEEDS_OWN):
        return one.step_module in _DEEPSPEEDS_IN_8_BITS
    return not one.step_module.startswith(TORCHS_OWN) or one.step_module in _IN_8_BITS


def number_bytes(manifest: RankManifest) -> int:
    """Return the bytes of most numbers of the model: 4, or 2 in half precision."""
    precision = manifest.precision
    in_32_bits = precision is None or precision.float32_frac is None or precision.float32_frac >= 0.5
    return 4 if in_32_bits else 2
