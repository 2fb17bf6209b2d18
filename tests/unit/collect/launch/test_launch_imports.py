"""Before the program starts, the launcher loads only what starting needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from folders import RECORDINGS

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
    (tmp_path / "none.py").write_text("")
    loaded = subprocess.check_output([sys.executable, "-c", SHOW], text=True, cwd=tmp_path).split()
    assert "gpuledger.collect.sampling.sampler" in loaded
    assert not {"numpy", "pyarrow", "duckdb", "rich", "torch", "psutil", "gpuledger.analyze"} & set(loaded)


SETTLE = """
import sys
from pathlib import Path
from gpuledger.cli.pandas_aside import leave_pandas_aside
leave_pandas_aside()
from gpuledger.services.running import Listeners, _load_ahead
_load_ahead(Listeners(print), on_gpu=True)
loaded = set(sys.modules)
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.services.runs import _add_watts
post_rank(Path("rank-0"))
_add_watts(Path("rank-0"))
print(*set(sys.modules) - loaded)
"""


def test_what_builds_the_tables_is_loaded_before_the_program_ends(tmp_path: Path) -> None:
    (tmp_path / "rank-0" / "journal").mkdir(parents=True)
    shutil.copy(RECORDINGS / "lstm.npz", tmp_path / "rank-0" / "journal" / "00000.npz")
    later = subprocess.check_output([sys.executable, "-c", SETTLE], text=True, cwd=tmp_path).split()
    packages = {name.partition(".")[0] for name in later}
    assert not packages & {"numpy", "pyarrow", "gpuledger"}, later
