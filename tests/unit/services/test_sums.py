"""Which file a workload's name means."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import make_run

from gpuledger.errors import InputError
from gpuledger.ops.workloads.workload import SUFFIX, Workload
from gpuledger.services.sums import open_workload


def test_a_folder_is_named_as_what_it_is_and_not_read(tmp_path: Path) -> None:
    make_run(tmp_path / "train.ledger", blocks=20)
    with pytest.raises(InputError, match=r"train\.ledger: a run, not a workload") as found:
        open_workload(str(tmp_path / "train.ledger"))
    assert found.value.hint == "Write a workload with: gpuledger ops capture"
    (tmp_path / "layers").mkdir()
    with pytest.raises(InputError, match="layers: a folder, not a workload"):
        open_workload(str(tmp_path / "layers"))


def test_a_folder_of_the_same_name_does_not_hide_a_workload(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    Workload("w", "inference", ()).write(tmp_path / f"net{SUFFIX}")
    assert open_workload(str(tmp_path / "net")).name == "w"
