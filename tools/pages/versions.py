"""With which versions of PyTorch and Python, and on which GPUs, the committed results were measured."""

from __future__ import annotations

from collections.abc import Iterable

from pages.blocks import ROOT, block
from pages.results import environment_of, read, wrap


@block("versions of PyTorch")
def versions_of_pytorch() -> list[str]:
    """Return the versions that ran on a GPU and those that only ran on a CPU, and those of Python."""
    on_gpu: set[str] = set()
    on_cpu: set[str] = set()
    cards: set[str] = set()
    pythons: set[str] = set()
    for place in sorted((ROOT / "bench").glob("*/results/*/*.json")):
        told = environment_of(read(str(place.relative_to(ROOT / "bench"))))
        version = told.get("versions", {}).get("torch")
        if version is None:
            continue
        (on_gpu if told.get("card") else on_cpu).add(version.partition("+")[0])
        cards |= {told["card"]} if told.get("card") else set()
        pythons |= {told["python"].rpartition(".")[0]} if told.get("python") else set()
    only_cpu = _listed(on_cpu - on_gpu)
    return wrap(
        f"On a GPU ({_listed(cards)}), everything was measured with PyTorch {_listed(on_gpu)}.",
        f"PyTorch {only_cpu} ran on CPUs only, and not yet on a GPU." if only_cpu else "",
        f"The results come from Python {_listed(pythons)}.",
    )


def _listed(words: Iterable[str]) -> str:
    """Return words in order, with commas and a last "and"."""
    *first, last = sorted(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
