"""What keeps the passes from a program on a GPU: too little room, graphs, its own profilers, other ranks, its end.

Every program here prints the same bare and recorded, whatever becomes of the passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from present import present

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from programs import GPULEDGER, environment, write_script  # noqa: E402

from gpuledger import load  # noqa: E402
from gpuledger.analyze.step.times import break_down_time  # noqa: E402
from gpuledger.analyze.step.work import names_of  # noqa: E402
from gpuledger.model.pass_facts import TIME_STEPS  # noqa: E402
from gpuledger.model.run import Rank  # noqa: E402

TRAIN = """
    import os, torch
    torch.manual_seed(0)
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(rank)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    BEFORE
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(1024, 512, device="cuda")
    for step in range(STEPS):
        IN_STEP
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(rank, loss.item())
    AFTER
"""
LITTLE_ROOM = """free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(free_bytes - (700 << 20), dtype=torch.uint8, device="cuda")"""
GRAPH = """pool, held = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(held):
        pool.add_(torch.ones_like(pool))"""
REPLAY = "held.replay()"
REPLAYED = 'held.replay(); torch.cuda.synchronize(); print("graph", pool.sum().item())'
PROFILE = """if step == AT:
            theirs = torch.profiler.profile(); theirs.__enter__()
        if step == AT + 2:
            torch.cuda.synchronize(); theirs.__exit__(None, None, None)
            print("theirs", sorted((e.key, e.count) for e in theirs.key_averages() if e.key.startswith("aten::")))
            print("kernels", sum(e.count for e in theirs.key_averages() if "gemm" in e.key))"""
RANKS = """torch.distributed.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])"""
RANKS_END = "torch.distributed.destroy_process_group()"
FIRST_TIMED = 3
"""The first step of the timing measurement, counted from 0: three are recorded for memory."""
LAST_TIMED = FIRST_TIMED + TIME_STEPS - 1


@dataclass(frozen=True)
class Both:
    """What a program printed by itself and recorded, and the ranks of the run."""

    bare: list[str]
    recorded: list[str]
    ranks: tuple[Rank, ...]

    @property
    def rank(self) -> Rank:
        """Return the only rank."""
        (rank,) = self.ranks
        return rank


def run(place: Path, *options: str, steps: int = 9000, program: tuple[str, ...] = (), **pieces: str) -> Both:
    """Return both runs of a program, with pieces put in."""
    source = TRAIN.replace("STEPS", str(steps))
    for name in ("BEFORE", "IN_STEP", "AFTER"):
        source = source.replace(name, pieces.get(name.lower(), "pass"))
    script = str(write_script(place, source))
    env = environment(GPULEDGER_PASSES="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    said = []
    for before in ((), (*GPULEDGER, "run", "--out", "card", "--force", *options)):
        words = [*before, sys.executable, *program, script] if program or not before else [*before, script]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, env=env, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(sorted(done.stdout.splitlines()))
    return Both(said[0], said[1], load(place / "card.ledger").ranks)


def said_of(rank: Rank) -> list[str]:
    """Return all that a run says of its passes: notes, and what was left out without being a fault."""
    return [*rank.manifest.notes, *rank.manifest.left_out]


def test_less_than_a_gibibyte_free_leaves_the_time_pass_out(tmp_path: Path) -> None:
    both = run(tmp_path, before=LITTLE_ROOM)
    assert both.bare == both.recorded
    assert break_down_time(both.rank) is None
    assert [one for one in said_of(both.rank) if "No timing measurement" in one and "too little for CUPTI" in one]


def test_graphs_leave_the_time_pass_out(tmp_path: Path) -> None:
    both = run(tmp_path, before=GRAPH, in_step=REPLAY, after=REPLAYED)
    assert both.bare == both.recorded
    assert [line for line in both.recorded if line.startswith("graph ")]
    assert break_down_time(both.rank) is None
    assert [one for one in said_of(both.rank) if "uses CUDA graphs" in one]


def test_a_time_pass_that_is_asked_for_beside_graphs_ends_well(tmp_path: Path) -> None:
    """CUPTI stays in: graphs that were captured under it, or before it, go on being replayed."""
    both = run(tmp_path, "--passes", "memory,time", steps=60, before=GRAPH, in_step=REPLAY, after=REPLAYED)
    assert both.bare == both.recorded
    times = break_down_time(both.rank)
    assert times is not None
    assert times.steps == 3
    assert times.unplaced_ns <= 0.002 * times.work_ns
    names = names_of(both.rank)
    operators = {names.get(one) for one in both.rank.table("spans", ("operator_id",))[0].to_pylist()}
    assert "aten::add_" in operators  # of the capture: nothing else in the program adds in place
    assert "cudaGraphLaunch" not in operators


@pytest.mark.parametrize("at", [1, FIRST_TIMED - 1, FIRST_TIMED, FIRST_TIMED + 1, LAST_TIMED, LAST_TIMED + 1, 25])
def test_a_profiler_of_the_programs_is_complete_wherever_it_stands(at: int, tmp_path: Path) -> None:
    both = run(tmp_path, "--passes", "memory,time", steps=40, in_step=PROFILE.replace("AT", str(at)))
    assert both.bare == both.recorded
    assert "kernels 0" not in both.recorded
    gave_way = [one for one in said_of(both.rank) if "its own profiler" in one]
    assert bool(gave_way) == (break_down_time(both.rank) is None) == (at <= LAST_TIMED)


@pytest.mark.parametrize(
    ("steps", "words"), [(FIRST_TIMED + 1, "timing measurement was cut short"), (2, "No timing measurement")]
)
def test_a_program_that_ends_inside_or_before_the_time_pass_ends_well(steps: int, words: str, tmp_path: Path) -> None:
    both = run(tmp_path, "--passes", "memory,time", steps=steps)
    assert both.bare == both.recorded
    assert [one for one in said_of(both.rank) if words in one]


def test_a_program_that_ends_inside_the_energy_pass_keeps_its_steps(tmp_path: Path) -> None:
    sleeps = "torch.cuda.synchronize(); import time; time.sleep(0.05)"
    both = run(tmp_path, "--passes", "memory,energy,time", steps=30, in_step=sleeps)
    assert both.bare == both.recorded
    assert [one for one in said_of(both.rank) if "energy measurement was cut short" in one]
    (energy,) = present(both.rank.manifest.energy)
    assert energy.energy_j is None or energy.energy_j > 0


def test_a_step_of_kernels_alone_has_the_owners_of_the_step_before(tmp_path: Path) -> None:
    both = run(tmp_path, "--passes", "memory,time:4", steps=40)
    assert both.bare == both.recorded
    times = break_down_time(both.rank)
    assert times is not None
    assert times.steps == 4
    assert times.unplaced_ns <= 0.002 * times.work_ns
    columns = ("kind", "module_id", "operator_id", "phase", "stream")
    spans = [one for one in both.rank.table("spans", ("step", *columns)).to_pylist() if one["kind"] != "phase"]
    by_step = [[[one[name] for name in columns] for one in spans if one["step"] == 4 + n] for n in range(4)]
    assert by_step[0]
    assert all(sorted(map(str, one)) == sorted(map(str, by_step[0])) for one in by_step)


FORKS = """if step == 3:
            pid = os.fork()
            if not pid: os._exit(3)
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"""


def test_a_pass_that_was_begun_anew_has_kernels(tmp_path: Path) -> None:
    """CUPTI has gone at the end of the first try, or it would go in the second and take its kernels with it."""
    both = run(tmp_path, "--passes", "memory,time", steps=40, in_step=FORKS)
    assert both.bare == both.recorded
    times = break_down_time(both.rank)
    assert times is not None
    assert not times.on_host
    assert both.rank.manifest.time_steps == (5, 7)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks take two cards")
def test_two_ranks_measure_the_same_steps(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    both = run(
        tmp_path, "--passes", "memory,energy,time", "--", program=torchrun, steps=12_000, before=RANKS, after=RANKS_END
    )
    assert both.bare == both.recorded
    assert len(both.ranks) == 2
    energies = [present(rank.manifest.energy) for rank in both.ranks]
    assert all(len(energy) == 1 and present(energy[0].energy_j) > 0 for energy in energies), energies
    assert len({energy[0].first_step for energy in energies}) == 1
    times = [break_down_time(rank) for rank in both.ranks]
    assert all(one is not None and "collective" in one.by_kind_ns for one in times)
