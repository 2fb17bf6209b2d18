"""The first screen of ``run`` and ``show``, on recordings of an H200 and on synthetic runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from present import present
from synthetic import make_run

from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.manifest import World, read_json
from gpuledger.model.pass_facts import TimedProgram
from gpuledger.model.run import read_run
from gpuledger.model.run_directory import write_json
from gpuledger.report.base.phrases import overhead_parts
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.first_screen import first_screen
from gpuledger.report.text.run_summary import run_summary_lines
from gpuledger.units import format_bytes

RECORDINGS = Path(__file__).parents[3] / "recordings" / "passes"
TRAINING = RECORDINGS / "neumf-training.ledger"
LABELS = [
    *("Peak memory", "Largest categories", "Largest modules", "To lower the peak", "Step time", "Energy", "Overhead"),
]


def screen(run: Path, width: int | None = 80) -> list[str]:
    return first_screen(build_view(read_run(run)), Terminal(width))


def show(*words: object, **environ: str) -> list[str]:
    result = CliRunner().invoke(main, ["show", *map(str, words)], env={"COLUMNS": None, **environ})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_run_of_a_gpu_answers_every_question_in_order() -> None:
    lines = screen(TRAINING)
    assert [line[:20].strip() for line in lines if line[0] != " "] == LABELS
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "793.2 MiB of 140.4 GiB (0.6 %) on cuda:0 NVIDIA H200, in step 2, backward of layers.0 (Linear)" in text
    assert "GPU busy 3.02 ms (72 %; copies 71.86 µs), idle 1.15 ms (28 %)" in text
    assert "1.600 ± 0.007 J per step, 24.42 µJ per sample" in text
    assert "profiled steps are 1.8× slower than unprofiled ones" in text


def test_rates_and_energy_of_one_of_several_ranks_name_the_rank() -> None:
    run = read_run(TRAINING)
    number = run.ranks[0].number
    manifest = replace(run.ranks[0].manifest, world=World(size=4, rank=number))
    view = build_view(replace(run, ranks=(replace(run.ranks[0], manifest=manifest),)))
    text = " ".join(" ".join(first_screen(view, Terminal(200))).split())
    assert f" samples/s on rank {number} (batch " in text
    assert f"1.600 ± 0.007 J per step on rank {number}, " in text
    assert "on rank" not in " ".join(screen(TRAINING))


@pytest.mark.parametrize(("frac", "words"), [(0.01, "not slower"), (1.04, "not slower"), (2.14, "2.1× slower")])
def test_recording_makes_no_step_faster(frac: float, words: str) -> None:
    """Profiled steps that take less than the others do less."""
    overhead = replace(build_view(read_run(TRAINING)).highest.overhead, profiled_step_frac=frac)
    assert overhead_parts(overhead)[-1].startswith(f"profiled steps are {words} than unprofiled ones")


def test_a_profiled_step_and_overlapping_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    view = build_view(read_run(TRAINING))
    times = present(view.highest.times)
    longer = replace(times, work_ns=2 * times.busy_ns, step_ns=4e6, of_profiled_step=True, idle_ns=4e6 - times.busy_ns)
    monkeypatch.setitem(vars(view.highest), "times", longer)
    text = " ".join(" ".join(first_screen(view, Terminal())).split())
    busy = (
        "GPU busy 3.02 ms (75 %; of a profiled step of 4.00 ms; kernels sum to 6.03 ms, some at the same time; copies"
    )
    assert busy in text


@pytest.mark.parametrize(
    ("timed", "words"),
    [
        (TimedProgram(operators=108, is_whole=True), "for 108 operators of the program"),
        (TimedProgram(operators=100_000, is_whole=False), "for the first 100,000 operators of the program"),
        (TimedProgram(operators=48, is_whole=False, before=64), "for 48 operators of the program, after its first 64"),
    ],
)
def test_it_says_which_operators_of_a_program_without_steps_were_timed(timed: TimedProgram, words: str) -> None:
    view = build_view(read_run(TRAINING))
    manifest = replace(view.highest.rank.manifest, timed_program=timed)
    view.highest.__dict__["rank"] = replace(view.highest.rank, manifest=manifest)
    (line,) = (line for line in first_screen(view, Terminal(200)) if line.startswith("Operators"))
    assert line.endswith(words)


def test_run_and_show_begin_with_the_same_screen() -> None:
    wide = screen(TRAINING, None)
    assert run_summary_lines(read_run(TRAINING), Terminal())[: len(wide)] == wide == show(TRAINING)[: len(wide)]


def test_what_every_step_keeps_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    view = build_view(read_run(TRAINING))
    *others, last = view.highest.findings
    leak = replace(last, title="Every step keeps 1.0 MiB more", action="keep fewer", is_replayed=True, grows=True)
    monkeypatch.setitem(vars(view.highest), "findings", (*others, leak))
    (line,) = (line for line in first_screen(view, Terminal()) if line.startswith("To lower the peak"))
    assert line.split(maxsplit=4)[-1] == "keep fewer: every step keeps 1.0 MiB more"


def test_what_would_lower_the_peak_was_replayed_and_is_the_reports() -> None:
    view = build_view(read_run(TRAINING))
    replayed = [finding for finding in view.highest.findings if finding.is_replayed]
    assert replayed
    text = " ".join(" ".join(first_screen(view, Terminal())).split())
    for finding in replayed[:2]:
        assert f"{finding.action}: saves " in text
        assert format_bytes(finding.saving_bytes) in text
    assert not any(one.action in text for one in view.highest.findings if not one.is_replayed)


@pytest.mark.parametrize("run", ["halves", "neumf-training"])
@pytest.mark.parametrize("by", ["category", "module", "phase", "tensor"])
def test_a_table_sums_to_the_figure_above_it_in_its_unit(run: str, by: str) -> None:
    lines = show(RECORDINGS / f"{run}.ledger", "--by", by)
    amount, unit = lines[0].removeprefix("Peak memory").split()[:2]
    title = next(line for line in lines if line.startswith(f"by {by}"))
    total = next(line for line in lines if line.startswith("total")).split()[1]
    assert unit in title.split()
    assert round(float(total), 1) == float(amount)


def test_tables_of_kernels_fit_80_columns_in_a_pipe_and_json_has_whole_names() -> None:
    lines = show(TRAINING, "--by", "kernel", "-n", 100)
    table = lines[next(place for place, line in enumerate(lines) if line.startswith("by kernel")) :]
    assert max(map(len, table)) <= 80
    assert not any("at::native" in line or "void " in line for line in table)
    wide = show(TRAINING, "--by", "kernel", "-n", 100, COLUMNS="200")
    names = [line.split("  ")[0] for line in wide[wide.index("") + 2 : -1]]
    assert len(set(names)) == len(names)
    document = CliRunner().invoke(main, ["show", str(TRAINING), "--by", "kernel", "--json"]).stdout
    assert "void at::native::vectorized_gather_kernel<16, long>(char*" in document


@pytest.mark.parametrize("is_cuda", [True, False])
def test_missing_energy_is_said_of_gpus_and_at_the_end_of_a_recording(tmp_path: Path, is_cuda: bool) -> None:
    path = make_run(tmp_path / "one.ledger", blocks=200, cuda=is_cuda)
    for note in ("Energy was not measured: because.", "No joules: because."):
        manifest = read_json(path / "rank-0" / "manifest.json")
        write_json(path / "rank-0" / "manifest.json", manifest | {"left_out": [note]})
        assert f"Note  {note}" in run_summary_lines(read_run(path), Terminal())
        shown = CliRunner().invoke(main, ["show", str(path)])
        assert (note in shown.stderr) is is_cuda


def test_a_simulated_gpu_has_no_step_time(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one.ledger", blocks=200)
    manifest = read_json(path / "rank-0" / "manifest.json")
    write_json(path / "rank-0" / "manifest.json", manifest | {"recorder": "virtual"})
    lines = screen(path, None)
    assert "(simulated)" in lines[0]
    assert "Step time           not measured: the GPU is simulated, so nothing ran" in lines
    assert not any(line.startswith("Overhead") for line in lines)
