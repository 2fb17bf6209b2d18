"""A callback for the transformers Trainer: marks steps, records where nothing else does, and logs the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.errors import UsageError
from gpuledger.integrations.training import RecordedTraining

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise UsageError(
            "gpuledger.integrations.transformers: transformers is not installed", hint="pip install transformers"
        ) from error


class GpuLedgerCallback(TrainerCallback):
    """``GpuLedgerCallback.attach(trainer)`` adds it and logs the figures to the trainer's loggers when training ends.

    A step is one of the Trainer's: gradients that are accumulated belong to one. Added with ``callbacks=[…]`` alone it
    knows no trainer, and the figures go to ``state.log_history``.

    Args:
        name: Name of the recording.
        how: What ``gpuledger.record`` takes besides, such as ``steps`` or ``passes``.
    """

    def __init__(self, name: str = "trainer", **how: Any) -> None:
        super().__init__()
        self._name, self._how = name, how
        self._trainer: Any = None
        self._training: RecordedTraining | None = None
        self.recording: Any = None
        """The recording that this callback made; None where another was under way."""

    @classmethod
    def attach(cls, trainer: Any, name: str = "trainer", **how: Any) -> GpuLedgerCallback:
        """Return a callback after adding it to ``trainer``."""
        callback = cls(name, **how)
        callback._trainer = trainer
        trainer.add_callback(callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, in the process that the program is looked at from."""
        self._training = RecordedTraining(self._name, self._how)
        self._training.begin()
        self.recording = self._training.recording

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark a step."""
        if self._training is not None:
            self._training.mark()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End, and log the figures."""
        training, self._training = self._training, None
        figures = {} if training is None else training.end()
        if figures and self._trainer is not None:
            self._trainer.log(figures)
        elif figures:
            state.log_history.append({**figures, "step": state.global_step})
