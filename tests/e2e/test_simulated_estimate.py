"""Estimates end to end: from Python in this process, and from the command line through a child."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from json_page import documented_keys
from present import present

pytest.importorskip("torch")
import torch
from torch import nn

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError
from gpuledger.simulate.estimate.failures import describe_failure
from gpuledger.simulate.gpu import hints

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_children")]
MIB = 1 << 20

TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()
assert torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(options.steps):
    data = torch.randn(options.batch_size, 1024, device=device)
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
    torch.save(model.state_dict(), "checkpoint.pt")
open("finished", "w").close()
"""


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def make_step(width: int) -> tuple[nn.Sequential, Any]:
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())

    def step(data: Any) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return model, step


@pytest.mark.parametrize(("limit_frac", "verdict"), [(0.5, "fits"), (1e-4, "does not fit")])
def test_the_verdict_is_for_the_limit_that_a_program_sets(limit_frac: float, verdict: str) -> None:
    _, step = make_step(512)

    def limited(data: Any) -> None:
        torch.cuda.set_per_process_memory_fraction(limit_frac)
        step(data)

    found = gpuledger.estimate(limited, torch.randn(4096, 512), gpu="a100-80gb")
    assert {fit.verdict for fit in (found.fit, *found.others)} == {verdict}
    allowed_bytes = found.card.usable_bytes - found.card.outside_bytes
    assert allowed_bytes == int(limit_frac * found.card.available_bytes)
    assert (found.peak_reserved_bytes <= allowed_bytes) is (verdict == "fits")


def test_a_step_is_accounted_to_the_byte_and_nothing_changes() -> None:
    model, step = make_step(512)
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    before = layer.weight.detach().clone()
    found = gpuledger.estimate(step, torch.randn(4096, 512), gpu="a100-80gb")
    rank = found.run.rank(0)
    assert all(check.ok for check in rank.manifest.checks)
    databases = break_down(rank, find_peak(rank), by=("category",))
    sizes = {account.category: account.bytes for account in databases.accounts}
    assert sizes["weight"] == 512 * 512 * 4
    assert sizes["optimizer_state"] == 2 * 512 * 512 * 4
    assert sizes["input"] == 4096 * 512 * 4
    assert sizes["workspace"] == 2 * 8_519_680
    assert sum(sizes.values()) == found.peak_allocated_bytes == databases.allocated_bytes
    assert found.peak_allocated_bytes < found.peak_reserved_bytes < found.peak_process_bytes <= found.upper_bytes
    assert found.fits
    assert re.fullmatch(
        r"<Estimate: fits on NVIDIA A100.*, [\d.]+ MiB, at most [\d.]+ MiB, of [\d.]+ GiB>", repr(found)
    )
    assert found.steps == 3
    assert torch.equal(layer.weight, before)
    assert type(layer.weight) is nn.Parameter
    step(torch.randn(2, 512))
    assert not torch.equal(layer.weight, before)


def test_weights_that_are_converted_on_the_gpu_are_of_their_module() -> None:
    def program(data: Any) -> None:
        model = nn.Sequential(nn.Linear(1024, 1024, bias=False)).cuda().half()
        with torch.no_grad():
            model(data.half())

    rank = gpuledger.estimate(program, torch.randn(1, 1024), gpu="a100-80gb").run.rank(0)
    parts = break_down(rank, find_peak(rank), by=("category", "module")).accounts
    weights = [(account.module, account.bytes) for account in parts if account.category == "weight"]
    assert weights == [("Sequential#2.0", 1024 * 1024 * (4 + 2))]  # the first one was freed


def test_the_largest_batch_from_python() -> None:
    _, step = make_step(256)

    def train(batch: int) -> None:
        step(torch.randn(batch, 256, device="cuda"))

    found = gpuledger.find_batch(train, gpu="t4", start=1 << 20, steps=1)
    assert found.largest is not None
    sizes = [present(trial.process_bytes) for trial in found.trials]
    assert sizes == sorted(sizes)
    fitting = [trial.value for trial in found.trials if trial.verdict == "fits"]
    assert found.largest == max(fitting)


def test_what_python_callers_get_wrong() -> None:
    _, step = make_step(8)
    with pytest.raises(UsageError, match="not in the catalogue of GPUs"):
        gpuledger.estimate(step, torch.randn(1, 8), gpu="h2000")
    with pytest.raises(UsageError, match="steps must be 1 or more"):
        gpuledger.estimate(step, torch.randn(1, 8), steps=0)
    for confidence in (0.4, 1.0, float("nan")):
        with pytest.raises(UsageError, match=r"expected 0\.5 to 0\.999"):
            gpuledger.estimate(step, torch.randn(1, 8), confidence=confidence)
    with pytest.raises(UsageError, match="start must be 1 or more"):
        gpuledger.find_batch(step, start=0)
    library = torch.library.Library("gpuledger_other", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    with pytest.raises(InputError, match="mystery"):
        gpuledger.estimate(lambda data: torch.ops.gpuledger_other.mystery(data), torch.randn(2))
    library._destroy()
    assert not torch.cuda.is_available() or torch.version.cuda


def test_the_module_that_called_an_unknown_operator_is_named_and_a_hint_helps() -> None:
    """Without a fake kernel the estimate ends; told the shape of the result, the step goes on."""

    class Mystery(nn.Module):
        def forward(self, data: Any) -> Any:
            return torch.ops.gpuledger_told.mystery(data)

    library = torch.library.Library("gpuledger_told", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    library.impl("mystery", lambda x: x.clone(), "CPU")
    model = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.ReLU(), Mystery()))

    def step(data: Any) -> None:
        with torch.no_grad():
            model(data)

    with pytest.raises(InputError, match=r"gpuledger_told\.mystery.*called by 1") as caught:
        gpuledger.estimate(step, torch.randn(1024, 256), steps=1)
    assert "fake_output" in present(caught.value.hint)

    @gpuledger.fake_output("gpuledger_told::mystery")
    def mystery(data: Any) -> Any:
        return data.new_empty(2 * data.shape[0], data.shape[1])

    rank = gpuledger.estimate(step, torch.randn(1024, 256), steps=1).run.rank(0)
    sizes = rank.table("blocks", ("requested_bytes",)).column("requested_bytes").to_pylist()
    assert 2 * 1024 * 256 * 4 in sizes
    library._destroy()


def test_a_function_of_an_extension_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C++ does behind a plain function cannot be followed; what it returns can be told."""
    extension = types.ModuleType("gpuledger_extension")
    extension.fuse = lambda data: data.numpy().sum()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuledger_extension", extension)
    monkeypatch.setattr(
        hints, "_FUNCTIONS", {}
    )  # what is told is told for good, and this module is gone after the test
    before = extension.fuse

    @gpuledger.fake_output("gpuledger_extension.fuse")
    def fuse(data: Any) -> Any:
        return data.new_empty(data.shape[0])

    seen = []
    gpuledger.estimate(lambda data: seen.append(extension.fuse(data)), torch.randn(4096, 16), steps=1)
    assert seen[0].shape == (4096,)
    assert extension.fuse is before


@pytest.mark.parametrize(
    ("file", "message", "expected"),
    [
        ("/x/torch/distributed/fsdp/api.py", "no process group", "FSDP is not supported on a simulated GPU"),
        (
            "/x/torch/distributed/distributed_c10d.py",
            "no NCCL",
            "torch.distributed is not supported on a simulated GPU",
        ),
        ("/x/torch/cuda/graphs.py", "no stream", "a CUDA graph is not supported on a simulated GPU"),
        ("/home/train.py", "Cannot access data pointer of Tensor", "C++ code reads the values of a tensor"),
        ("/home/train.py", "out of patience", ""),
    ],
)
def test_what_is_not_modelled_is_named(file: str, message: str, expected: str) -> None:
    source = compile("def fail(): raise RuntimeError(message)", file, "exec")
    names: dict[str, Any] = {"message": message}
    exec(source, names)
    with pytest.raises(RuntimeError) as caught:
        names["fail"]()
    told = describe_failure(caught.value)
    assert told["unmodelled"].startswith(expected)
    assert bool(told["unmodelled"]) == bool(expected)


def test_a_script_is_followed_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    told = ask("estimate", "--json", "-q", "--gpu", "l4", "--steps", "2", "train.py", "--batch-size", "64")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert set(found) == documented_keys("estimate")
    assert found["verdict"] == "fits"
    assert found["steps"] == 2
    weights = (1024 * 4096 * 2 + 4096 + 1024) * 4
    assert found["by_category"]["weight"] == weights
    assert found["by_category"]["optimizer_state"] == 2 * weights
    assert found["peak_process_bytes"] > found["peak_reserved_bytes"] >= found["peak_allocated_bytes"] > 4 * weights
    assert not Path("checkpoint.pt").exists()
    assert not Path("finished").exists()
    run = found["run"]
    for words in (("show", run, "--by", "module"), ("balance", run), ("diff", run, run)):
        assert ask(*words).exit_code == 0, ask(*words).output
    gate = ask("estimate", "-q", "--gpu", "t4", "--steps", "1", "--require-fit", "train.py", "--batch-size", "1000000")
    assert gate.exit_code == 5, gate.output
    assert "does not fit on t4" in gate.output
    assert Path("train-on-t4.ledger").is_dir()


def test_an_estimate_without_ranks_has_no_note_of_data_parallel_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the simulated GPU puts in the place of its methods is no unsupported version of PyTorch."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN.replace("import argparse, torch", "import argparse, torch, torch.distributed"))
    told = ask("estimate", "-q", "--gpu", "l4", "--steps", "1", "--out", "fit", "train.py")
    assert told.exit_code == 0, told.output
    manifest = gpuledger.load("fit.ledger").rank(0).manifest
    assert all(check.ok for check in manifest.checks)
    assert not [note for note in manifest.notes if "is not supported" in note]


def test_a_compiled_script_is_approximated_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = "optimizer = torch.optim.Adam"
    Path("plain.py").write_text(TRAIN)
    Path("train.py").write_text(TRAIN.replace(made, f"model.compile(mode='reduce-overhead')\n{made}"))
    options = ("--steps", "2", "--gpu", "l4")
    plain, compiled = (
        json.loads(ask("estimate", "--json", "-q", *options, name, "--batch-size", "65536").stdout)
        for name in ("plain.py", "train.py")
    )
    line = next(
        number for number, text in enumerate(Path("train.py").read_text().splitlines(), 1) if ".compile(" in text
    )
    assert compiled["uncompiled"] == [f"train.py:{line}"]
    assert plain["uncompiled"] == []
    less_bytes = [one["peak_process_bytes"] - one["lower_bytes"] for one in (plain, compiled)]
    assert 0 < less_bytes[0] < less_bytes[1]
    assert compiled["peak_process_bytes"] < compiled["upper_bytes"]
    assert compiled["peak_allocated_bytes"] <= plain["peak_allocated_bytes"]
    assert any("CUDA graphs is not included" in note for note in compiled["notes"])
    told = ask("estimate", "-q", *options, "train.py", "--batch-size", "65536").stdout.splitlines()
    assert " GiB at the peak, -" in told[0]
    assert told[1].startswith(f"compiled code is approximated (train.py:{line}); the program may need ")
    assert any(
        "compiled code" in note for note in json.loads(Path(compiled["run"], "manifest.json").read_text())["notes"]
    )


def test_a_model_that_was_compiled_before_is_estimated_uncompiled() -> None:
    model, plain_step = make_step(64)
    compiled: Any = torch.compile(model)
    found = gpuledger.estimate(lambda data: compiled(data).sum().backward(), torch.randn(4, 64), steps=1)
    assert found.uncompiled
    assert found.lower_bytes < found.peak_process_bytes
    plain = gpuledger.estimate(plain_step, torch.randn(4, 64), steps=1)
    assert not plain.uncompiled
    assert plain.lower_bytes < plain.peak_process_bytes


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("raise ValueError('no data here')", 3, "ValueError: no data here"),
        ("print('nothing is trained')", 3, "no training step was seen"),
        (
            "import torch; layer = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(layer.parameters())\n"
            "for _ in range(9):\n    layer(torch.randn(1, 2)).sum().backward(); optimizer.step()",
            3,
            "bad.py:1: did not use the GPU",
        ),
    ],
)
def test_scripts_without_an_answer(
    script: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(script)
    told = ask("estimate", "-q", "bad.py")
    assert told.exit_code == code
    assert message in told.output
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        ("open('labels.csv')", "bad.py:2: FileNotFoundError", "reads the program's files"),
        ("import os; os.environ['MY_SERVICE']", "bad.py:2: KeyError: 'MY_SERVICE'", "environment variable MY_SERVICE"),
        ("import subprocess; subprocess.run(['no-such-tool'])", "bad.py:2: FileNotFoundError", "Install no-such-tool"),
        ("import subprocess; subprocess.run(['./nvidia-smi'])", "bad.py:2: FileNotFoundError", "Ask torch.cuda"),
        ("import os; os.environ['LOCAL_RANK']", "bad.py:2: KeyError: 'LOCAL_RANK'", "--world-size N"),
        (
            "import torch; torch.distributed.init_process_group('nccl', world_size=8, rank=0)",
            "bad.py:2: init_process_group waits for 8 ranks, and one is simulated",
            "--world-size 8",
        ),
        (
            "import torch; torch.multiprocessing.spawn(print, nprocs=4)",
            "bad.py:2: torch.multiprocessing.spawn starts processes that are not simulated",
            "--world-size 4",
        ),
        ("import no_such_library", "bad.py:2: ModuleNotFoundError", "Install it"),
        (
            "import sys; sys.exit('needs two GPUs')",
            "bad.py:2: no training step was seen (exit status 1): needs",
            "ended itself",
        ),
        ("import os; os.abort()", "bad.py:2: its process ended early, with signal 6", "C++ code failed"),
    ],
)
def test_what_a_script_lacks_is_said_with_its_line(
    script: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(f"# the second line fails\n{script}")
    told = ask("-v", "estimate", "-q", "bad.py")
    assert told.exit_code == 3
    assert f"gpuledger: error: {message}" in told.output
    assert hint in told.output.rpartition("hint: ")[2]
    if "Error: " in message or message.endswith("Error"):  # the program's own traceback
        assert f'bad.py", line 2, in <module>\n    {script}' in told.output


def test_a_program_on_several_gpus_is_counted_on_one_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(
        "import torch\na = torch.ones(1 << 20, device='cuda:0')\nb = a.to('cuda:1')\nc = torch.ones(4, device='cuda:1')"
    )
    found = json.loads(ask("estimate", "-q", "--json", "two.py").stdout)
    said = [note for note in found["notes"] if "is counted on cuda:0" in note]
    assert [note.partition(": ")[0] for note in said] == ["two.py:3, two.py:4"]


def test_a_program_without_steps_is_estimated_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text("import torch; a = torch.ones(1 << 20, device='cuda'); b = a * 2; del a; c = b.sum()")
    found = json.loads(ask("estimate", "-q", "--json", "--out", "found", "sums.py").stdout)
    assert found["peak_allocated_bytes"] == 8 << 20
    assert "No training step was seen, so the estimate is of the whole program." in found["notes"]
    assert "\nby module " in ask("show", "found.ledger").stdout  # no stacks, so no lines
    Path("sums.py").write_text("import torch, sys; a = torch.ones(4, device='cuda'); sys.exit(3)")
    told = ask("estimate", "-q", "sums.py")
    assert (told.exit_code, "no training step was seen (exit status 3)" in told.output) == (3, True)


def test_an_interrupted_estimate_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_order: Any, directory: Path, _output: Any) -> None:
        directory.mkdir()
        (directory / "manifest.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuledger.simulate.estimate.run.estimate_program", interrupted)
    Path("train.py").write_text("")
    assert ask("estimate", "train.py").exit_code != 0
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.parametrize(
    "words",
    [
        ("estimate",),
        ("estimate", "absent.py"),
        ("estimate", "--gpu", "h2000", "train.py"),
        ("estimate", "--steps", "0", "train.py"),
        ("estimate", "--alloc-conf", "nonsense", "train.py"),
        ("estimate", "--find-batch", "batch-size", "train.py"),
    ],
)
def test_wrong_calls_end_with_2(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    assert ask(*words).exit_code == 2
    assert not list(tmp_path.glob("*.ledger"))


def test_the_catalogue_is_listed() -> None:
    told = ask("gpus")
    assert told.exit_code == 0
    assert "h200" in told.output
    cards = {card["gpu"]: card for card in json.loads(ask("gpus", "--json").stdout)}
    assert cards["h200"]["context_bytes"]["source"] == "measured"
    assert cards["l4"]["memory_mib"]["source"] == "datasheet"


ROUTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader
lines = [torch.ones(length, dtype=torch.int64) for length in (4, 4, 4, 4, 64, 8, 8, 8)]
model = nn.Sequential(nn.Embedding(10, 256), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters())
for line in DataLoader(lines, batch_size=1):
    optimizer.zero_grad()
    found = model(line.cuda()).repeat(1, 256, 1)
    found[found > 0].sum().backward()
    optimizer.step()
"""


def test_the_largest_batch_and_the_largest_mask_are_in_the_answer(tmp_path: Path) -> None:
    """Half of a mask is assumed, the upper bound includes all of it; the fifth batch is the largest."""
    script = tmp_path / "routed.py"
    script.write_text(ROUTED)
    done = ask("estimate", "-q", "--json", "--out", tmp_path / "run.ledger", script)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak_step"] == 5
    assert found["steps"] == 8  # all of them: what is reserved can grow with lines of other lengths
    least, largest = (found["assumed"][f"{name}_reserved_bytes"] for name in ("least", "largest"))
    assert least < found["peak_reserved_bytes"] < largest
    assert found["upper_bytes"] >= found["peak_process_bytes"] + largest - found["peak_reserved_bytes"]
    assert any("half of each mask" in note for note in found["notes"])
    fixed = ask("estimate", "-q", "--json", "--steps", "2", "--out", tmp_path / "fixed.ledger", script)
    assert json.loads(fixed.stdout)["steps"] == 2
    for wrong in ("0", "many"):
        refused = ask("estimate", "--steps", wrong, script)
        assert refused.exit_code == 2
        assert "or auto" in refused.stderr


def test_a_gpu_that_is_not_listed(tmp_path: Path) -> None:
    script = tmp_path / "routed.py"
    script.write_text(ROUTED)
    options = ("--gpu-memory", "24GiB", "--sm", "8.9")
    done = ask("estimate", "-q", "--json", "--steps", "1", *options, "--out", tmp_path / "run.ledger", script)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpu"] == "24576MiB-sm-8.9"
    assert found["interval_from"].endswith("on another GPU")
    for wrong, said in ((options[:2], "belong together"), ((*options[:3], "x"), "expected a compute capability")):
        refused = ask("estimate", *wrong, script)
        assert refused.exit_code == 2
        assert said in refused.stderr
