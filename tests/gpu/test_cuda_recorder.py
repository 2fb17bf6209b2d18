"""The recorder on a real GPU: every check must hold in every corner of the allocator."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger.analyze.memory.breakdown import break_down  # noqa: E402
from gpuledger.analyze.memory.instant import find_peak, resolve_instant  # noqa: E402
from gpuledger.analyze.memory.lines.source_lines import WITHOUT_LINE  # noqa: E402
from gpuledger.analyze.view.view import build_view  # noqa: E402


def record(tmp_path: Path, work: Any, **options: Any) -> Any:
    with gpuledger.record("t", out=tmp_path / "t.ledger", **options) as recording:
        work(recording)
    rank = recording.run().rank(0)
    assert rank.manifest.recorder_name == "cuda-history", rank.manifest.notes
    bad = [check for check in rank.manifest.checks if not check.ok]
    assert rank.manifest.checks
    assert not bad, bad
    return rank


def categories(rank: Any, at: str = "peak") -> Counter[str]:
    found: Counter[str] = Counter()
    for account in break_down(rank, resolve_instant(rank, at), ("category",)).accounts:
        found[account.category] += account.bytes
    return found


def net(width: int = 512, depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]).cuda()


def train(model: nn.Module, optimizer: Any, steps: int = 3, batch: int = 256, *, to_none: bool = True) -> None:
    for _ in range(steps):
        x = torch.randn(batch, 512, device="cuda")
        optimizer.zero_grad(set_to_none=to_none)
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("to_none", [True, False])
def test_weights_gradients_and_state_are_exact(tmp_path: Path, to_none: bool) -> None:
    def work(_: Any) -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, to_none=to_none)
        kept.extend((model, optimizer))

    kept: list[Any] = []
    gc.collect()
    rank = record(tmp_path, work)
    held = categories(rank, "end")
    weights = sum(p.numel() * 4 for p in kept[0].parameters())
    assert held["weight"] == weights
    assert held["gradient"] == weights
    assert 2 * weights <= held["optimizer_state"] <= 2 * weights + 4 * 100


def test_what_was_alive_before_is_started_from(tmp_path: Path) -> None:
    model = net()
    stray = torch.zeros(3 << 20, device="cuda")
    gc.collect()
    rank = record(tmp_path, lambda _: train(model, torch.optim.SGD(model.parameters(), 0.1)))
    held = categories(rank, "end")
    assert held["weight"] == sum(p.numel() * 4 for p in model.parameters())
    assert held["other"] >= stray.nbytes


def test_streams_and_awaiting_free(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        side = torch.cuda.Stream()
        for _ in range(5):
            x = torch.randn(4 << 20, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
                torch.cuda._sleep(10_000_000)
            x.record_stream(side)
            del x, y
            torch.randn(4 << 20, device="cuda")

    rank = record(tmp_path, work)
    blocks = rank.table("blocks").to_pydict()
    pairs = zip(blocks["free_requested_index"], blocks["free_index"], strict=True)
    waited = [asked for asked, done in pairs if asked is not None and (done is None or done > asked + 1)]
    assert waited, "no block awaited its other stream"


def test_empty_cache_and_unsplit_blocks(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        a = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        del a
        b = torch.empty((30 << 20) - (600 << 10), dtype=torch.uint8, device="cuda")
        small = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 511, 513, 1 << 20, (1 << 20) + 1)]
        del b
        torch.cuda.empty_cache()
        torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
        del small
        torch.cuda.empty_cache()

    record(tmp_path, work)


def test_checkpointed_blocks_stay_on_their_module(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = torch.randn(4096, 512, device="cuda", requires_grad=True)
            for block in model:
                x = checkpoint(block, x, use_reentrant=False)
            x.sum().backward()
            optimizer.step()

    rank = record(tmp_path, work)
    names = {m["module_id"]: m["class_name"] for m in rank.table("modules").to_pylist()}
    rows = [r for r in rank.table("blocks").to_pylist() if r["phase"] == "backward" and r["category"] == "activation"]
    assert rows, "no recomputed activation"
    assert {names[r["module_id"]] for r in rows} <= {"Linear", "GELU", "Sequential"}


def test_a_gan_has_two_roots_and_counts_one_step(tmp_path: Path) -> None:
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(64, 512)

        def forward(self, x: Any) -> Any:
            return self.body(x)

    class Discriminator(Generator):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(512, 1)

    def work(_: Any) -> None:
        g, d = Generator().cuda(), Discriminator().cuda()
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for _ in range(4):
            fake = g(torch.randn(32, 64, device="cuda"))
            od.zero_grad()
            (d(fake.detach()).mean() - d(torch.randn(32, 512, device="cuda")).mean()).backward()
            od.step()
            og.zero_grad()
            d(fake).mean().backward()
            og.step()

    rank = record(tmp_path, work)
    assert rank.manifest.steps_seen == 4
    paths = set(rank.table("modules").column("path").to_pylist())
    assert {"Generator", "Generator.body", "Discriminator", "Discriminator.body"} <= paths


def test_grad_scaler_with_a_skipped_step_and_accumulation(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
        for number in range(8):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(64, 512, device="cuda")).float().square().mean()
            scaler.scale(loss).backward()
            if number % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    rank = record(tmp_path, work)
    assert rank.manifest.steps_seen < 4


def test_inference_counts_calls(tmp_path: Path) -> None:
    model = net()
    gc.collect()

    def work(_: Any) -> None:
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(64, 512, device="cuda"))

    rank = record(tmp_path, work)
    assert rank.manifest.steps_seen == 5
    assert find_peak(rank).phase == "evaluation"


def test_cuda_graph_pool(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        model, x = net(), torch.randn(64, 512, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side), torch.no_grad():
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            model(x)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        kept.append(graph)  # with it goes its pool

    kept: list[Any] = []
    gc.collect()
    torch.cuda.empty_cache()  # an address that had a pool before would be in doubt
    pools = record(tmp_path, work).table("blocks").column("pool_id").to_pylist()
    assert 0 in pools
    assert any(pool for pool in pools if pool), set(pools)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # the compiler's advice
@pytest.mark.parametrize("compiled", ["fullgraph", "default"])
def test_compiled_modules_keep_weights_exact(tmp_path: Path, compiled: str) -> None:
    kept: list[nn.Module] = []

    def work(_: Any) -> None:
        model = net()
        kept.append(model)
        run = torch.compile(model, fullgraph=compiled == "fullgraph")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()

    rank = record(tmp_path, work)
    assert categories(rank, "end")["weight"] == sum(p.numel() * 4 for p in kept[0].parameters())


SCRIPT = """
import torch, torch.nn as nn, gpuledger
def net(): return nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4)]).cuda()
with gpuledger.record("t", out=OUT, steps=STEPS) as recording:
    model = net(); optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad(); model(torch.randn(256, 512, device="cuda")).square().mean().backward(); optimizer.step()
rank = recording.run().rank(0)
bad = [c for c in rank.manifest.checks if not c.ok]
assert rank.manifest.recorder_name == RECORDER, rank.manifest.notes
assert not bad, bad
print("peak", torch.cuda.max_memory_allocated(), rank.manifest.steps_seen)
"""


def run_script(tmp_path: Path, *, steps: str = "None", recorder: str = "cuda-history", **environment: str) -> str:
    text = SCRIPT.replace("OUT", repr(str(tmp_path / "s.ledger"))).replace("STEPS", steps)
    text = text.replace("RECORDER", repr(recorder))
    command, environment = [sys.executable, "-c", text], {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "settings",
    [
        "expandable_segments:True",
        "roundup_power2_divisions:4",
        "max_split_size_mb:32",
        "expandable_segments:True,roundup_power2_divisions:8",
        "garbage_collection_threshold:0.6",
    ],
)
def test_allocator_settings(tmp_path: Path, settings: str) -> None:
    run_script(tmp_path, PYTORCH_CUDA_ALLOC_CONF=settings)


def test_launch_blocking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert run_script(tmp_path / "a") == run_script(tmp_path / "b", CUDA_LAUNCH_BLOCKING="1")


@pytest.mark.parametrize("steps", ["(1, 3)", "(2, 3)", "(4, 9)"])
def test_windows(tmp_path: Path, steps: str) -> None:
    run_script(tmp_path, steps=steps)


def test_async_allocator_falls_back_to_the_dispatcher(tmp_path: Path) -> None:
    run_script(tmp_path, recorder="dispatch", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")


def test_out_of_memory_is_the_programs_own_and_is_explained(tmp_path: Path) -> None:
    out = tmp_path / "oom.ledger"
    text = textwrap.dedent(f"""
        import torch, gpuledger
        torch.cuda.set_per_process_memory_fraction((3 << 30) / torch.cuda.mem_get_info()[1])
        keep = []
        with gpuledger.record("oom", out={str(out)!r}, steps=(1, 100)):
            model = torch.nn.Linear(8192, 8192).cuda()
            x = torch.randn(8192, 8192, device="cuda")
            while True:
                keep.append(model(x))
    """)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("torch.OutOfMemoryError")
    rank = gpuledger.load(out).rank(0)
    (fact,) = rank.manifest.oom
    assert fact.tried_bytes == 8192 * 8192 * 4
    assert not [check for check in rank.manifest.checks if not check.ok]
    held = categories(rank)
    assert held["activation"] >= 5 * 8192 * 8192 * 4
    assert held["weight"] == 8192 * 8193 * 4


def test_a_history_that_the_program_starts_is_its_own_and_the_recording_reads_it(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        train(net(), torch.optim.SGD(net().parameters(), 0.1), steps=1)
        torch.cuda.memory._record_memory_history(max_entries=1000)
        kept.append(torch.randn(1000, device="cuda"))
        snapshots.append(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)

    snapshots: list[Any] = []
    kept: list[Any] = []
    with gpuledger.record("t", out=tmp_path / "t.ledger") as recording:
        work(recording)
    rank = recording.run().rank(0)
    assert any("changed PyTorch's memory history" in note for note in rank.manifest.notes)
    (mine,) = [e for e in snapshots[0]["device_traces"][0] if e["action"] == "alloc"]
    assert mine["frames"], "the program's own history lost its stacks"
    assert not [check for check in rank.manifest.checks if not check.ok]
    assert kept[0].nbytes in rank.table("blocks", ("requested_bytes",))["requested_bytes"].to_pylist()


OWN_HISTORY = """
import pickle
import torch
torch.manual_seed(0)
torch.cuda.memory._record_memory_history(max_entries=100_000)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(16):
    loss = model(torch.randn(256, 512, device="cuda")).square().mean()  # loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot("own.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
with open("own.pickle", "rb") as file:
    traces = pickle.load(file)["device_traces"]
events = [(event["action"], event["size"]) for trace in traces for event in trace if event["action"] != "snapshot"]
print(loss.item(), len(events), hash(tuple(events)), torch.cuda.max_memory_allocated())
"""


def test_a_program_that_keeps_its_own_history_is_recorded_from_it(tmp_path: Path) -> None:
    program, out = tmp_path / "train.py", tmp_path / "own.ledger"
    program.write_text(OWN_HISTORY)
    recorded = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), str(program)]
    printed = []
    for command in ([sys.executable, str(program)], recorded):
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    rank = gpuledger.load(out).rank(0)
    assert [check for check in rank.manifest.checks if not check.ok] == []
    assert rank.manifest.time_steps is not None
    view = build_view(gpuledger.load(out)).highest
    assert view.breakdown.allocated_bytes == int(printed[0].split()[-1])
    assert categories(rank)["weight"] == 4 * (2 * 512 * 2048 + 2048 + 512)
    by_line = {line.label.rpartition("/")[2]: line.bytes for line in view.line_amounts}
    assert sum(size or 0 for label, size in by_line.items() if label.startswith("train.py:")) > 0.9 * sum(
        size or 0 for size in by_line.values()
    )


def test_nothing_stays_installed_and_peaks_are_the_programs_own(tmp_path: Path) -> None:
    functions = nn.Module.__call__, torch.autograd.backward, torch.cuda.memory._record_memory_history
    before = [function.__code__ for function in functions]
    model = net()
    record(tmp_path, lambda _: train(model, torch.optim.SGD(model.parameters(), 0.1)))
    assert [function.__code__ for function in functions] == before
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_long_window_drains_and_loses_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    rank = record(tmp_path, lambda _: train(model, optimizer, steps=60))
    drains = [pause for pause in rank.manifest.pauses if pause.reason == "drain"]
    assert 1 <= len(drains) < 60
    assert rank.manifest.recorder_bytes < 2_000 * 512


def test_every_block_has_a_line_and_the_compiler_is_not_imported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(4):
                model(torch.randn(256, 512, device="cuda")).square().mean().backward()
                optimizer.step()
            print("torch._inductor" in sys.modules)
            """
        )
    )
    out = tmp_path / "run.ledger"
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--passes", "memory", "--out", str(out), str(program)]
    bare, recorded = (
        subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for words in ([sys.executable, str(program)], command)
    )
    assert recorded == bare
    rank = gpuledger.load(out).rank(0)
    accounts = break_down(rank, find_peak(rank), ("category", "line")).accounts
    without = sum(account.bytes for account in accounts if account.line in WITHOUT_LINE)
    assert without <= 0.05 * sum(account.bytes for account in accounts)
    assert {account.line.split(":")[0] for account in accounts if account.category == "weight"} == {"train.py"}
