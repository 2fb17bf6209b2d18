"""Every CUDA program of the corpus ends, prints, computes and allocates the same bare and recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]

LIMIT_S = 900


@pytest.mark.timeout(LIMIT_S + 60)
def test_cuda_programs_run_alike_bare_and_recorded(tmp_path: Path) -> None:
    out = tmp_path / "corpus.json"
    command = [sys.executable, str(ROOT / "bench" / "harm" / "corpus_cuda.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    table = json.loads(out.read_text(encoding="utf-8"))
    assert table["complete"], done.stderr[-3000:]
    assert [row for row in table["rows"] if not row.get("equal", True)] == []
    assert done.returncode == 0, done.stdout[-3000:]
    assert table["peak_allocated_bytes_equal"] == table["peak_reserved_bytes_equal"] >= 40
