"""Trainings on CPU tensors that pretend to use the scripted GPU, recorded by ``gpuledger run`` with an energy pass."""

from __future__ import annotations

from pathlib import Path

from programs import TRAIN, TRAIN_WITH_COMPILER, Ended, execute, write_script
from quick import quick_python
from stubbed import with_stub

LAUNCHER = """
import sys
from dataclasses import replace
from gpuledger.cards import opening
opening.BUILT_IN = tuple(replace(vendor, driver_files=("/",)) for vendor in opening.BUILT_IN)
from gpuledger.cli.main import main
main()
"""
"""``gpuledger`` on a machine whose driver is the stub."""

PRETEND = """
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.passes import energy_pass
energy_cards.cards_in_use = lambda: [(-1, "GPU-stub-0")]
energy_pass.LENGTH_NS = {length_ns}
"""
"""Has the program use GPU 0, as far as its energy goes, for a pass of so many ns."""

RECORDED = """
import json
import gpuledger
from dataclasses import replace
from gpuledger.cards import opening
opening.BUILT_IN = tuple(replace(vendor, driver_files=("/",)) for vendor in opening.BUILT_IN)
with gpuledger.record("all", passes="memory,energy,time") as recording:
    for _ in range({count}):
        step()
        time.sleep({pause_s})
print(json.dumps([recording.step_energy_j, recording.sample_energy_j, recording.step_time_ns]))
"""
"""The same from Python, by a thread of the program itself."""

STEPS = "import time\nfor _ in range({count}):\n    step()\n    time.sleep({pause_s})\n"


def metered(
    directory: Path,
    *,
    count: int = 80,
    pause_s: float = 0.02,
    length_s: float = 0.6,
    passes: str | None = None,
    compiles: bool = False,
    **script: float,
) -> Ended:
    """Return how a recorded training of ``count`` steps ended; its run is ``train.ledger``.

    ``passes`` are those asked for; None leaves the default. ``compiles`` is whether its model is compiled.
    """
    train = TRAIN_WITH_COMPILER + "model = torch.compile(model)\n" if compiles else TRAIN
    steps = STEPS.format(count=count, pause_s=pause_s)
    write_script(directory, PRETEND.format(length_ns=round(length_s * 1e9)) + train + steps)
    write_script(directory, LAUNCHER, "launcher.py")
    words = ["run", "-q", "--devices", "auto", "--no-stacks", *(("--passes", passes) if passes else ()), "train.py"]
    return execute([quick_python(), "launcher.py", *words], directory, with_stub(directory, **script))


def metered_from_python(directory: Path, *, count: int = 80, pause_s: float = 0.02, **script: float) -> Ended:
    """Return how a training that records itself ended; it prints the joules of a step and of a sample, and the step."""
    source = PRETEND.format(length_ns=600_000_000) + TRAIN + "import time"
    write_script(directory, source + RECORDED.format(count=count, pause_s=pause_s))
    return execute([quick_python(), "train.py"], directory, with_stub(directory, **script))
