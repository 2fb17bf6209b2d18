"""Make the pictures of the pages: `python tools/make_doc_pictures.py` needs torch, matplotlib and Chromium.

diff.png is the diff of two trainings of tests/data/docs/train.py on this machine's CPU, one with a larger batch.
two-bar-gpt2.png is a recording of GPT-2 small on an H200 (tests/recordings). The other two are old logs in tests/data.
The picture of the report is made by tools/make_report_picture.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
DATA = ROOT / "tests" / "data"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GPULEDGER = (sys.executable, "-m", "gpuledger")
SETTLE_MS = 8_000


def main() -> None:
    """Make every picture anew."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        desk = Path(directory)
        picture_diff(desk)
        picture_groups(desk)
        picture_logs(desk)


def picture_diff(desk: Path) -> None:
    """Make the picture of the diff of two trainings."""
    shutil.copy(ROOT / "tests" / "data" / "docs" / "train.py", desk)
    gpuledger(desk, "run", "-q", "--out", "before", "train.py")
    gpuledger(desk, "run", "-q", "--out", "after", "train.py", "--batch-size", "256")
    gpuledger(desk, "diff", "before", "after", "--html", "diff.html")
    photograph(desk / "diff.html", PICTURES / "diff.png", 1100, 900)


def picture_groups(desk: Path) -> None:
    """Draw a recording of a real GPU by layer and by data structure."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from card_recordings import post_recording

    from gpuledger.model.run_directory import write_json

    post_recording("gpt2", desk)
    write_json(desk / "gpt2.ledger" / "manifest.json", {"schema_version": 1, "status": "complete", "name": "gpt2"})
    gpuledger(desk, "plot", "gpt2", "--kind", "two-bar", "--force", "-o", str(PICTURES / "two-bar-gpt2.png"))


def picture_logs(desk: Path) -> None:
    """Draw logs of nvidia-smi and of times per layer."""
    logs = sorted(map(str, (DATA / "nvidia_smi").glob("memory_*.txt")))
    title = "VGG-19, one forward, five convolution algorithms (2020)"
    options = ("--align", "first-use", "--title", title, "--force", "-o", str(PICTURES / "plot-old-logs.png"))
    gpuledger(desk, "plot", *logs, *options)
    options = ("--kind", "batches", "--title", "VGG-19, time of all layers by batch size (2020)", "--force")
    gpuledger(desk, "plot", str(DATA / "time_log" / "logVGG.txt"), *options, "-o", str(PICTURES / "plot-time-log.png"))


def gpuledger(desk: Path, *words: str) -> None:
    """Run one command in ``desk``."""
    subprocess.run([*GPULEDGER, *words], cwd=desk, check=True, stdout=subprocess.DEVNULL)


def photograph(page: Path, place: Path, width: int, height: int) -> None:
    """Write what a browser shows of a page as a PNG."""
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}")
    waits = (f"--virtual-time-budget={SETTLE_MS}", f"--screenshot={place}")
    subprocess.run([browser, *options, *waits, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
