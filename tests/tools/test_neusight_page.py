"""The page's table of predictions on other GPUs is that of the results file."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "NVIDIA_H100_80GB_HBM3": "H100", "NVIDIA_A100-PCIE-40GB": "A100 40 GB", "Tesla_V100-PCIE-32GB": "V100",
    "NVIDIA_L4": "L4", "Tesla_T4": "T4",
}  # fmt: skip
HOWS = ("predicted_frac", "one_gpu_left_out_frac", "neusight_frac")


def test_the_page_has_the_figures_of_the_file() -> None:
    results = json.loads((ROOT / "bench/operators/results/cpu/neusight.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/operator-costs.md").read_text(encoding="utf-8")
    for name, table in results["wholes"].items():
        gpu, _, mode = name.partition(", ")
        if gpu == "all":
            continue
        cells = [f"{table[how]['median_frac']:.1%}, {table[how]['worst_frac']:.1%}".replace("%", " %") for how in HOWS]
        mode = {"inf": "inference", "train": "training"}[mode]
        line = f"| {NAMES[gpu]}, {mode} | {table['predicted_frac']['n']} | {' | '.join(cells)} |"
        assert line in page, line
