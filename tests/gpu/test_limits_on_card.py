"""The pytest marks on a real GPU: exact bytes, joules that repeat, and nothing of the program changed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
pytest_plugins = ["pytester"]

# Pytest inside pytest forgets the modules that it was first to load, and this one cannot be loaded twice.
pytest.importorskip("torch._dynamo")

LEFT_OUT = "no:gpuledger", "no:cacheprovider", "no:benchmark"
PLUGIN = (*(word for name in LEFT_OUT for word in ("-p", name)), "-p", "gpuledger.integrations.pytest_plugin")


@pytest.mark.parametrize(("limit", "fails"), [("64 MiB", 0), ("63 MiB", 1)])
def test_a_test_may_take_its_limit_to_the_byte(pytester: pytest.Pytester, limit: str, fails: int) -> None:
    pytester.makepyfile(
        f"""
        import pytest, torch

        there = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")

        @pytest.mark.limit_gpu_memory("{limit}")
        def test_it():
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1 - fails, failed=fails)


def test_the_programs_own_peak_statistics_are_left_alone(pytester: pytest.Pytester) -> None:
    before = torch.cuda.max_memory_allocated()
    held = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    highest = max(before, torch.cuda.max_memory_allocated())
    del held
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.limit_gpu_memory("1 MiB")
        def test_it():
            torch.empty(1024, dtype=torch.uint8, device="cuda")
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    assert torch.cuda.max_memory_allocated() == highest


def test_joules_of_a_call_repeat() -> None:
    from gpuledger.integrations.step_energy import card_energy_counter, measure_call_energy

    left = torch.randn(2048, 2048, device="cuda")

    def call() -> None:
        for _ in range(20):
            left @ left
        torch.cuda.synchronize()

    call()
    first, second = (measure_call_energy(call, card_energy_counter(), 2.0).joules for _ in range(2))
    assert first == pytest.approx(second, rel=0.1)
