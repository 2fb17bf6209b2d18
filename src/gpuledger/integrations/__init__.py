"""Integrations with other tools: pytest, training frameworks and loggers.

From Python: ``from gpuledger.integrations import TensorBoardSink, log_run``. May import every package except ``cli``
and ``live``. The other tool is imported on first use. ``cli`` may import it. Start reading at ``scalars`` for loggers
and ``training`` for callbacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger._lazy import lazy_names

if TYPE_CHECKING:
    from gpuledger.integrations.log_mlflow import MlflowSink
    from gpuledger.integrations.log_prometheus import PrometheusSink
    from gpuledger.integrations.log_tensorboard import TensorBoardSink
    from gpuledger.integrations.log_wandb import WandbSink
    from gpuledger.integrations.scalars import Sink, log_run, run_scalars, step_scalars

__all__ = [
    "MlflowSink",
    "PrometheusSink",
    "Sink",
    "TensorBoardSink",
    "WandbSink",
    "log_run",
    "run_scalars",
    "step_scalars",
]

_MODULES = {
    "MlflowSink": "gpuledger.integrations.log_mlflow",
    "PrometheusSink": "gpuledger.integrations.log_prometheus",
    "Sink": "gpuledger.integrations.scalars",
    "TensorBoardSink": "gpuledger.integrations.log_tensorboard",
    "WandbSink": "gpuledger.integrations.log_wandb",
    "log_run": "gpuledger.integrations.scalars",
    "run_scalars": "gpuledger.integrations.scalars",
    "step_scalars": "gpuledger.integrations.scalars",
}

if not TYPE_CHECKING:  # the pytest plugin imports this package, so it loads nothing by itself
    __getattr__ = lazy_names(__name__, _MODULES)
