"""Before the program starts, the launcher loads only what starting needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOW = """
import os, sys
sys.argv[1:] = ["run", "-q", "none.py"]
os.fork = lambda: print(*sys.modules, flush=True) or os._exit(0)
import gpuledger.cards.opening, gpuledger.cli.record.run
from gpuledger.cards.card import BareCard
gpuledger.cards.opening.find_cards = lambda: [BareCard(0, "Bare", "GPU-bare")]
from gpuledger.cli.main import main
main()
"""


def test_no_library_for_numbers_or_tables_is_loaded_before_the_program_starts(tmp_path: Path) -> None:
    loaded = subprocess.check_output([sys.executable, "-c", SHOW], text=True, cwd=tmp_path).split()
    assert "gpuledger.collect.sampling.sampler" in loaded
    assert not {"numpy", "pyarrow", "duckdb", "rich", "torch", "psutil", "gpuledger.analyze"} & set(loaded)
