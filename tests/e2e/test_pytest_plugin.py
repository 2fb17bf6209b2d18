"""The pytest plugin, driven by pytest's own tester: marks, skips, the table, the fixture, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from types import ModuleType

import pytest

from gpuledger.cli.main import main as gpuledger_main
from gpuledger.integrations import pytest_energy, pytest_plugin, step_energy

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

PLUGIN = ("-p", "no:gpuledger", "-p", "gpuledger.integrations.pytest_plugin", "-p", "no:cacheprovider")
CPU = "--gpuledger-devices=cpu"
KIB = 1024
needs_no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a card")


LOADED: dict[str, ModuleType] = {}
"""What the sessions inside this process loaded: the tester forgets it, and neither torch's nor pandas' load twice."""


class Loads:
    """A plugin of such a session."""

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Keep what was loaded, the session's own tests left out."""
        for name, module in sys.modules.items():
            if not (getattr(module, "__file__", None) or "").startswith(str(config.rootpath)):
                LOADED.setdefault(name, module)


def load_again() -> None:
    """Have all of it loaded that the tester took out."""
    for name, module in LOADED.items():
        sys.modules.setdefault(name, module)


@pytest.fixture(autouse=True)
def _what_is_loaded_stays_so() -> Iterator[None]:
    yield  # the tester's own end comes before this one's
    load_again()


def run(pytester: pytest.Pytester, source: str, *words: str) -> pytest.RunResult:
    pytester.makepyfile(f"import pytest, torch\n{source}")
    result = pytester.runpytest_inprocess(*PLUGIN, *words, plugins=[Loads()])
    load_again()
    return result


def marked(limit: str, body: str) -> str:
    return f"@pytest.mark.limit_gpu_memory({limit})\ndef test_it():\n    {body}\n"


@pytest.mark.parametrize(("limit", "fails"), [("'64 KiB'", 0), ("64 * 1024", 0), ("'63 KiB'", 1)])
def test_a_test_may_take_its_limit_to_the_byte(pytester: pytest.Pytester, limit: str, fails: int) -> None:
    result = run(pytester, marked(limit, "torch.empty(64 * 1024, dtype=torch.uint8).zero_()"), CPU)
    result.assert_outcomes(passed=1 - fails, failed=fails)
    if fails:
        result.stdout.fnmatch_lines(
            ["*allocated 64.0 KiB (65,536 B)*, 1.0 KiB over the limit of 63.0 KiB*", "*pytest --gpuledger-out DIR*"]
        )


def test_what_was_there_before_is_not_counted(pytester: pytest.Pytester) -> None:
    source = """
@pytest.fixture
def model():
    return torch.nn.Linear(512, 512)

@pytest.mark.limit_gpu_memory("64 KiB")
def test_it(model):
    with torch.no_grad():
        model(torch.ones(1, 512))
"""
    run(pytester, source, CPU).assert_outcomes(passed=1)


def test_a_failure_names_who_holds_the_bytes(pytester: pytest.Pytester) -> None:
    body = "torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())(torch.ones(8, 64)).sum().backward()"
    result = run(pytester, marked("'1 KiB'", body), CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*at *on cpu:*", "* KiB  *weight * 0*"])


def test_a_kept_recording_is_named_and_can_be_shown(pytester: pytest.Pytester) -> None:
    result = run(pytester, marked("1", "torch.ones(9)"), CPU, "--gpuledger-out=kept")
    (path,) = (pytester.path / "kept").iterdir()
    result.stdout.fnmatch_lines([f"next: gpuledger show *{path.name}* --by module"])
    with pytest.raises(SystemExit, match=r"^0$"):
        gpuledger_main(["show", str(path)])


@pytest.mark.parametrize(("grow", "fails"), [("KEPT.append(torch.ones(1024))", 1), ("torch.ones(1024)", 0)])
def test_growth_is_what_the_calls_after_the_warm_up_keep(pytester: pytest.Pytester, grow: str, fails: int) -> None:
    source = f"""
KEPT, CALLS = [], []

@pytest.mark.limit_gpu_growth(calls=2, warmup=1)
def test_it():
    CALLS.append(1)
    if len(CALLS) == 1:
        KEPT.append(torch.ones(4096))
    {grow}

def test_calls():
    assert len(CALLS) == 3
"""
    result = run(pytester, source, CPU)
    result.assert_outcomes(passed=2 - fails, failed=fails)
    if fails:
        result.stdout.fnmatch_lines(
            ["*8.0 KiB (8,192 B) still allocated after 2 calls*", "*8.0 KiB  *(outside modules)*"]
        )


def test_what_only_a_cycle_keeps_is_not_growth(pytester: pytest.Pytester) -> None:
    source = """
@pytest.mark.limit_gpu_growth("0 B", calls=1, warmup=1)
def test_it():
    cycle = [torch.ones(1024)]
    cycle.append(cycle)
"""
    run(pytester, source, CPU).assert_outcomes(passed=1)


@needs_no_card
def test_without_a_card_the_marks_skip_and_say_why(pytester: pytest.Pytester) -> None:
    source = marked("1", "assert False") + "@pytest.mark.limit_gpu_growth()\ndef test_other(): assert False\n"
    result = run(pytester, source, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*limit_gpu_memory: no CUDA GPU here; use --gpuledger-simulate h200 for *"])


def test_the_devices_can_stand_in_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpuledger_devices = cpu\n")
    run(pytester, marked("'1 MiB'", "torch.ones(9)")).assert_outcomes(passed=1)
    pytester.makeini("[pytest]\ngpuledger_devices = tpu\n")
    assert run(pytester, "").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("limit_gpu_memory()", "missing 1 required positional argument"),
        ("limit_gpu_memory('3 parsecs')", "unknown unit parsecs"),
        ("limit_gpu_memory(-1)", "expected a text"),
        ("limit_gpu_memory(None)", "expected a text"),
        ("limit_gpu_memory('1 GiB', size=3)", "unexpected keyword argument 'size'"),
        ("limit_gpu_growth(calls=0)", "calls=0: expected a whole number of at least 1"),
        ("limit_gpu_growth(warmup=True)", "warmup=True: expected"),
    ],
)
def test_a_mark_that_cannot_be_read_stops_before_the_first_test(
    pytester: pytest.Pytester, mark: str, message: str
) -> None:
    result = run(pytester, f"@pytest.mark.{mark}\ndef test_it(): pass\n", CPU)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert "test_it" in result.stderr.str()


def test_the_table_orders_recorded_tests_by_peak(pytester: pytest.Pytester) -> None:
    source = """
def test_small(): torch.ones(1024)
def test_large(): torch.ones(4096)
def test_fails():
    torch.ones(2048)
    assert False
def test_none(): pass
"""
    result = run(pytester, source, CPU, "--gpuledger")
    result.assert_outcomes(passed=3, failed=1)
    lines = result.stdout.lines
    start = next(number for number, line in enumerate(lines) if "tests by peak memory" in line)
    found = [line.split() for line in lines[start + 1 : start + 5]]
    assert [row[-1].partition("::")[2] for row in found] == ["test_large", "test_fails", "test_small", "test_none"]
    assert [" ".join(row[:2]) for row in found] == ["16.0 KiB", "8.0 KiB", "4.0 KiB", "0 B"]


def test_a_failing_test_stays_that_failure(pytester: pytest.Pytester) -> None:
    result = run(pytester, marked("1", "assert torch.ones(99).sum() == 3, 'its own'"), CPU)
    result.assert_outcomes(failed=1)
    assert "its own" in result.stdout.str()
    assert "over the limit" not in result.stdout.str()


def test_the_fixture_records_what_the_test_wants(pytester: pytest.Pytester) -> None:
    source = """
from gpuledger.analyze.memory.instant import find_peak

@pytest.mark.limit_gpu_memory("8 KiB")
def test_it(gpuledger_recording):
    torch.ones(10000)
    with gpuledger_recording:
        torch.ones(1024)
    assert find_peak(gpuledger_recording.run().rank()).label == "peak"

@pytest.mark.limit_gpu_memory("8 KiB")
def test_never_begun(gpuledger_recording):
    pass

@pytest.mark.limit_gpu_growth()
def test_both(gpuledger_recording):
    pass
"""
    result = run(pytester, source, CPU)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*gpuledger_recording was not started*", "*use only one of the two*"])


def test_methods_and_unittest_are_held_to_their_marks(pytester: pytest.Pytester) -> None:
    source = """
import unittest

class TestPlain:
    @pytest.mark.limit_gpu_memory("1 KiB")
    def test_it(self): torch.ones(1024)

@pytest.mark.limit_gpu_memory("1 KiB")
class Case(unittest.TestCase):
    def test_it(self): torch.ones(1024)
"""
    run(pytester, source, CPU).assert_outcomes(failed=2)


def test_a_session_that_asks_for_nothing_loads_nothing() -> None:
    code = "import gpuledger.integrations.pytest_plugin, sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert loaded.isdisjoint(
        {"torch", "numpy", "pyarrow", "rich", "click", "gpuledger.services.runs", "gpuledger.units"}
    )


def test_an_unmarked_test_is_left_alone(pytester: pytest.Pytester) -> None:
    source = """
from gpuledger.collect.session import active

def test_it():
    assert active.current() is None
"""
    run(pytester, source, CPU).assert_outcomes(passed=1)


@needs_no_card
def test_energy_needs_a_card(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.limit_step_energy('5 J')\ndef test_it(): assert False\n", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*limit_step_energy: PyTorch has no CUDA GPU here"])


@pytest.mark.parametrize(("limit", "fails"), [("'5 J'", 0), ("'3 J'", 1)])
def test_energy_is_that_of_one_call(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, limit: str, fails: int
) -> None:
    used = count(step=4)
    monkeypatch.setattr(step_energy, "ONE_MORE", lambda: next(used), raising=False)
    monkeypatch.setattr(pytest_plugin, "_why_no_energy", lambda: "")
    monkeypatch.setattr(pytest_energy, "card_energy_counter", lambda: lambda: vars(step_energy)["SHOWN"])
    source = f"""
from gpuledger.integrations import step_energy

@pytest.mark.limit_step_energy({limit}, seconds=0.01)
def test_it():
    step_energy.SHOWN = float(step_energy.ONE_MORE())
"""
    monkeypatch.setattr(step_energy, "SHOWN", 0.0, raising=False)
    result = run(pytester, source, CPU)
    result.assert_outcomes(passed=1 - fails, failed=fails)
    if fails:
        result.stdout.fnmatch_lines(["*one call used 4.00* ± * J, 1.00 J over the limit of 3.00 J*"])


def test_without_torch_the_marks_skip_and_say_so(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_plugin, "find_spec", lambda name: None)
    source = "import pytest\n@pytest.mark.limit_gpu_memory(1)\ndef test_it(): assert False\n"
    source += "@pytest.mark.limit_step_energy(1)\ndef test_other(): assert False\n"
    pytester.makepyfile(source)
    result = pytester.runpytest_inprocess(*PLUGIN, CPU, "-rs", plugins=[Loads()])
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*limit_gpu_memory: torch is not installed"])


def test_on_a_virtual_card_marked_tests_run_and_others_stay_where_they_are(pytester: pytest.Pytester) -> None:
    source = """
def step():
    model = torch.nn.Linear(1024, 1024).cuda()
    model(torch.randn(64, 1024, device="cuda")).sum().backward()

@pytest.mark.limit_gpu_memory("96 MiB")
def test_fits():
    step()

@pytest.mark.limit_gpu_memory("8 MiB")
def test_does_not():
    step()

@pytest.mark.limit_gpu_growth("0 B", calls=1, warmup=1)
def test_grows_not():
    step()

def test_unmarked():
    assert not torch.cuda.is_available()
"""
    result = run(pytester, source, "--gpuledger-simulate=h200")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*limit_gpu_memory: allocated * over the limit of 8.0 MiB*", "at * on cuda:0:", "* MiB  weight*"]
    )


def test_a_virtual_card_that_is_not_known_is_a_wrong_call(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(): pass", "--gpuledger-simulate=h20000")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpuledger-simulate h20000: not in the catalogue" in result.stderr.str()


def test_a_test_that_leaves_the_simulated_gpu_alone_is_named(pytester: pytest.Pytester) -> None:
    source = """
import pytest, torch
@pytest.mark.limit_gpu_memory("1 GiB")
def test_on_the_cpu(): torch.ones(4)
@pytest.mark.limit_gpu_memory("1 GiB")
def test_on_the_gpu(): torch.ones(4, device="cuda")
"""
    result = run(pytester, source, "--gpuledger-simulate=h200")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["gpuledger: *::test_on_the_cpu: nothing was put on the simulated GPU"])
    result.stdout.no_fnmatch_line("gpuledger: *::test_on_the_gpu: nothing*")
