"""Advice on the temporaries of ``optimizer.step()`` that the program's optimizers can follow.

Source: torch.optim. A fused form exists where the groups have ``fused``; it excludes ``foreach=True`` and
``differentiable=True`` and needs floating-point parameters. Adagrad has its fused kernel on the CPU only. Without
``foreach``, an optimizer updates one parameter at a time; on the CPU, that is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.small_states import TORCHS_OWN

if TYPE_CHECKING:
    from gpuledger.model.manifest import OptimizerFacts

_ON_CPU_ONLY = "torch.optim.adagrad"


@dataclass(frozen=True)
class UpdateAdvice:
    """Advice on some of the program's optimizers.

    ``step_modules`` are the modules in which their ``step`` is written; None if the run does not say.
    """

    action: str
    advice: str
    step_modules: frozenset[str] | None = None


_UNKNOWN = UpdateAdvice(
    "use the fused optimizer (fused=True)",
    "Adam, AdamW, SGD and Adagrad then update each parameter without temporaries; foreach=False makes other "
    "optimizers update one parameter at a time",
)


def update_advice(optimizers: tuple[OptimizerFacts, ...] | None) -> UpdateAdvice | None:
    """Return advice for fewer temporaries; None if no optimizer has another form.

    Args:
        optimizers: The program's; None in a run that does not say which they are.
    """
    if optimizers is None:
        return _UNKNOWN
    fused = [one for one in optimizers if _can_be_fused(one)]
    if fused:
        excludes = any("foreach" in one.uses for one in fused)
        action = f"use the fused form of {_names(fused)} (fused=True)"
        without = "; leave foreach=True out, which excludes it" if excludes else ""
        advice = f"the fused form updates each parameter without temporaries{without}"
        return UpdateAdvice(action, advice, _modules(fused))
    together = [one for one in optimizers if _updates_together(one)]
    if together:
        return UpdateAdvice(
            f"use {_names(together)} with foreach=False",
            "it then updates one parameter at a time, with the temporaries of one, which takes longer; it has no fused "
            "form for these parameters and options",
            _modules(together),
        )
    return None


def _can_be_fused(one: OptimizerFacts) -> bool:
    if not one.step_module.startswith(TORCHS_OWN) or "fused" not in one.has or not one.is_floating:
        return False
    if one.step_module == _ON_CPU_ONLY and set(one.devices) != {"cpu"}:
        return False
    return not {"fused", "differentiable"} & set(one.uses)


def _updates_together(one: OptimizerFacts) -> bool:
    is_default = "cuda" in one.devices and "foreach" not in one.without
    is_torchs = one.step_module.startswith(TORCHS_OWN) and "foreach" in one.has and "fused" not in one.uses
    return is_torchs and ("foreach" in one.uses or (is_default and "differentiable" not in one.uses))


def _names(optimizers: list[OptimizerFacts]) -> str:
    return " and ".join(dict.fromkeys(one.name for one in optimizers))


def _modules(optimizers: list[OptimizerFacts]) -> frozenset[str]:
    return frozenset(one.step_module for one in optimizers)
