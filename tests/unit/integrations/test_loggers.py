"""The same scalars in every logger, read back from what the real packages wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import ALL_STEPS, load_run, make_run
from synthetic_lives import RECORDED_STEPS

from gpuledger.analyze.compare.metrics import measure
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.integrations.log_mlflow import MlflowSink
from gpuledger.integrations.log_prometheus import PrometheusSink
from gpuledger.integrations.log_tensorboard import TensorBoardSink
from gpuledger.integrations.log_wandb import WandbSink
from gpuledger.integrations.scalars import PREFIX, Sink, log_run, run_scalars, step_scalars
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import write_json

pytestmark = pytest.mark.filterwarnings("ignore")  # what other people's packages warn of is not ours
Values = dict[str, float]
PEAK, STEP_TIME = f"{PREFIX}peak_allocated_bytes", f"{PREFIX}step_time_ns"
STEPS_PEAK = f"{PREFIX}step_peak_allocated_bytes"


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Values]] = []

    def log(self, values: Any, step: int) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        """Nothing is left."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(tmp_path_factory.mktemp("runs") / "one.ledger", blocks=300, ranks=2)


def test_scalars_are_the_runs_own_figures(run: Run) -> None:
    values = run_scalars(run)
    highest = max(run.ranks, key=lambda rank: measure(rank, 0)["peak_allocated_bytes"].value)
    for name, metric in measure(highest, 0).items():
        assert values[f"{PREFIX}{name}"] == metric.value
    categories = sum(value for name, value in values.items() if name.startswith(f"{PREFIX}category/"))
    assert 0 < categories <= values[PEAK]


def test_every_step_has_a_time_and_a_recorded_one_its_peak(run: Run) -> None:
    steps = dict(step_scalars(run))
    assert list(steps) == list(range(1, ALL_STEPS + 1))
    assert all(values[STEP_TIME] > 0 for values in steps.values())
    recorded = [step for step, values in steps.items() if f"{PREFIX}step_peak_allocated_bytes" in values]
    assert recorded == list(range(1, RECORDED_STEPS + 1))
    assert max(steps[step][f"{PREFIX}step_peak_allocated_bytes"] for step in recorded) <= run_scalars(run)[PEAK]


def test_what_is_logged_is_counted(run: Run) -> None:
    kept = Kept()
    assert log_run(run, kept) == sum(len(values) for _, values in kept.rows)
    assert kept.rows[-1] == (ALL_STEPS, run_scalars(run))


def test_a_run_without_anything_is_an_error(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"schema_version": 1})
    with pytest.raises(EmptyRunError):
        log_run(read_run(tmp_path), Kept())


def logged(run: Run, sink: Sink) -> Values:
    """Return the run's figures after logging everything to ``sink``."""
    log_run(run, sink)
    sink.close()
    return run_scalars(run)


def test_tensorboard_reads_them_back(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    expected = logged(run, TensorBoardSink(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["tensors"]) >= set(expected)
    last = {name: float(events.Tensors(name)[-1].tensor_proto.float_val[0]) for name in expected}
    assert last == pytest.approx(expected, rel=1e-6)
    assert [event.step for event in events.Tensors(STEP_TIME)][:ALL_STEPS] == list(range(1, ALL_STEPS + 1))


def test_mlflow_reads_them_back(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(UsageError, match="cannot open it"):
        MlflowSink(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sink = MlflowSink(tmp_path / "store")
    expected = logged(run, sink)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    found = client.get_run(sink.run_id)
    assert found.data.metrics == pytest.approx(expected | {name: found.data.metrics[name] for name in (STEPS_PEAK,)})
    assert found.info.status == "FINISHED"
    assert sorted({one.step for one in client.get_metric_history(sink.run_id, STEP_TIME)}) == list(
        range(1, ALL_STEPS + 1)
    )
    again = MlflowSink(tmp_path / "store", run_id=sink.run_id)
    again.log({"gpuledger/more": 1.0}, 1)
    assert client.get_run(sink.run_id).data.metrics["gpuledger/more"] == 1.0


def test_wandb_writes_them_offline(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    own = wandb.init(mode="offline", project="theirs", dir=str(tmp_path))
    sink = WandbSink(own)
    expected = logged(run, sink)
    found = {name: own.summary[name] for name in expected}
    assert found == pytest.approx(expected)
    own.finish()
    assert list(tmp_path.rglob("*.wandb"))
    new = WandbSink(directory=tmp_path / "new")
    new.log({"gpuledger/x": 1.0}, 1)
    new.close()
    (written,) = (tmp_path / "new").rglob("*.wandb")
    assert written.stat().st_size > 0


def test_prometheus_is_scraped_and_written(run: Run, tmp_path: Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    sink = PrometheusSink(textfile=tmp_path / "gpuledger.prom")
    expected = logged(run, sink)
    text = (tmp_path / "gpuledger.prom").read_text(encoding="utf-8")
    assert text == prometheus.generate_latest(sink.registry).decode()
    for name, value in expected.items():
        assert sink.registry.get_sample_value(name.replace("/", "_")) == value
    assert sink.registry.get_sample_value("gpuledger_step") == ALL_STEPS


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("tensorboard", lambda: TensorBoardSink("x"), "tensorboard"),
        ("wandb", lambda: WandbSink(), "wandb"),
        ("mlflow", lambda: MlflowSink("x"), "mlflow"),
        ("prometheus_client", lambda: PrometheusSink(), "prometheus"),
    ],
)
def test_a_logger_that_is_not_installed_names_its_extra(
    module: str, make: Callable[[], object], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as raised:
        make()
    assert raised.value.hint == f"pip install 'gpuledger[{extra}]'"


def test_a_name_that_prometheus_refuses_is_rewritten(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    sink = PrometheusSink()
    sink.log(run_scalars(read_run(make_run(tmp_path / "h.ledger", hostile_names=True, blocks=200))), 1)
    sink.log({"gpuledger/✓ x": 2.0}, 2)
    assert sink.registry.get_sample_value("gpuledger___x") == 2.0
