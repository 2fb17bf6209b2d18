"""A callback for Lightning: marks steps, records where nothing else does, and logs the figures to its loggers."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpuledger.errors import UsageError
from gpuledger.integrations.training import RecordedTraining

if TYPE_CHECKING:
    Callback = object
elif "lightning" in sys.modules or find_spec("lightning"):
    from lightning.pytorch import Callback
elif find_spec("pytorch_lightning"):
    from pytorch_lightning import Callback
else:
    raise UsageError("gpuledger.integrations.lightning: Lightning is not installed", hint="pip install lightning")


class GpuLedgerCallback(Callback):
    """Pass it to a Trainer: ``Trainer(callbacks=[GpuLedgerCallback()])``.

    A step is what ends with an optimizer's step: batches that only accumulate gradients are parts of one.

    Args:
        name: Name of the recording.
        how: What ``gpuledger.record`` takes besides, such as ``steps`` or ``passes``.
    """

    def __init__(self, name: str = "lightning", **how: Any) -> None:
        super().__init__()
        self._name, self._how = name, how
        self._training: RecordedTraining | None = None
        self._steps = 0
        self.recording: Any = None
        """The recording that this callback made; None where another was under way."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._training = RecordedTraining(self._name, self._how)
        self._training.begin()
        self.recording = self._training.recording
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Mark a step where an optimizer has stepped."""
        if self._training is not None and trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._training.mark()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End, and log the figures."""
        figures = self._end()
        if figures:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End; what was recorded until the error is kept."""
        self._end()

    def _end(self) -> dict[str, float]:
        training, self._training = self._training, None
        return {} if training is None else training.end()
