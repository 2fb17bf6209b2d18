"""Make docs/pictures from real runs: `python tools/make_doc_pictures.py` in an environment with torch and Chromium.

report-gpt2.png and two-bar-gpt2.png are the recording of GPT-2 small on an H200 (tests/recordings); diff.png are two
trainings of tests/data/docs/train.py on this machine's CPU, one with a larger batch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GPULEDGER = (sys.executable, "-m", "gpuledger")
SETTLE_MS = 8_000


def main() -> None:
    """Make every picture anew."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        desk = Path(directory)
        picture_recording(desk)
        picture_diff(desk)


def picture_recording(desk: Path) -> None:
    """Make the pictures of a recording of a real GPU: of its report, and of its groups."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from card_recordings import post_recording

    from gpuledger.model.run_directory import write_json

    post_recording("gpt2", desk)
    write_json(desk / "gpt2.ledger" / "manifest.json", {"schema_version": 1, "status": "complete", "name": "gpt2"})
    gpuledger(desk, "report", "gpt2.ledger", "-o", "report.html")
    photograph(desk / "report.html", PICTURES / "report-gpt2.png", 1280, 1500)
    gpuledger(
        desk, "plot", "gpt2.ledger", "--kind", "two-bar", "-o", str(ROOT / "docs" / "two-bar-gpt2.png"), "--force"
    )


def picture_diff(desk: Path) -> None:
    """Make the picture of the diff of two trainings."""
    shutil.copy(ROOT / "tests" / "data" / "docs" / "train.py", desk)
    gpuledger(desk, "run", "-q", "--out", "before", "train.py")
    gpuledger(desk, "run", "-q", "--out", "after", "train.py", "--batch-size", "256")
    gpuledger(desk, "diff", "before", "after", "--html", "diff.html")
    photograph(desk / "diff.html", PICTURES / "diff.png", 1100, 900)


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
