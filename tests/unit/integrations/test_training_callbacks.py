"""Callbacks of training frameworks: steps are theirs, and the figures reach whatever logger is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import gpuledger
from gpuledger.integrations.training import RecordedTraining

pytest.importorskip("torch")
import torch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Loop:
    """A training whose optimizer steps twice in each of its steps, as an adversarial one does."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 16)).sum().backward()
            self.optimizer.step()


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.chdir(tmp_path)
    return Loop()


def test_where_nothing_records_the_training_is_recorded(loop: Loop) -> None:
    training = RecordedTraining("own", {"passes": "memory,time"})
    training.begin()
    for _ in range(20):
        loop.step()
        training.mark()
    figures = training.end()
    assert figures["gpuledger/peak_allocated_bytes"] > 0
    assert figures["gpuledger/step_time_ns"] > 0
    rank = gpuledger.load("own.ledger").rank()
    assert rank.manifest.time_steps == (4, 6)
    assert rank.manifest.steps_seen == 17
    assert {row["kind"] for row in rank.table("steps").to_pylist()} == {"marked"}


def test_inside_another_recording_only_steps_are_marked(loop: Loop) -> None:
    with gpuledger.record("outer") as recording:
        training = RecordedTraining("own", {})
        training.begin()
        for _ in range(3):
            loop.step()
            training.mark()
        assert training.end() == {}
    assert training.recording is None
    assert not Path("own.ledger").exists()
    assert recording.run().rank().manifest.steps_seen == 3


def test_a_training_without_a_step_is_no_error(loop: Loop) -> None:
    training = RecordedTraining("own", {})
    training.begin()
    assert "gpuledger/step_time_ns" not in training.end()


class Data(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"x": torch.full((16,), float(place)), "labels": torch.zeros(1)}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        found = self.layer(x)
        return {"loss": (found - labels).square().mean(), "logits": found}


def test_the_transformers_trainer(loop: Loop, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gpuledger.integrations.transformers import GpuLedgerCallback

    os.environ["TQDM_DISABLE"] = "1"
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=18,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(Model(), arguments, train_dataset=Data())
    callback = GpuLedgerCallback.attach(trainer)
    trainer.train()
    assert any("gpuledger/peak_allocated_bytes" in entry for entry in trainer.state.log_history)
    rank = callback.recording.run().rank()
    assert rank.manifest.time_steps == (4, 6)
    assert {row["kind"] for row in rank.table("steps").to_pylist()} == {"marked"}
    assert rank.manifest.inputs.shape == (2, 16)


def test_lightning(loop: Loop, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers.logger import DummyLogger

    from gpuledger.integrations.lightning import GpuLedgerCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Logger(DummyLogger):
        logged: dict[str, float] = {}  # noqa: RUF012 - one test

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.logged.update(metrics)

    callback, logger = GpuLedgerCallback(), Logger()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=18,
        accumulate_grad_batches=2,
        callbacks=[callback],  # type: ignore[list-item]  # a Callback at run time
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=2))
    assert logger.logged["gpuledger/peak_allocated_bytes"] > 0
    assert callback.recording.run().rank().manifest.time_steps == (4, 6)
