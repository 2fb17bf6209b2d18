"""What a user is told of an error of a program on a simulated GPU."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")
from gpuledger.simulate.estimate.failures import describe_failure
from gpuledger.simulate.rest.started import OTHER_THREADS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("error", [AssertionError("False, True"), FileNotFoundError(2, "missing", "data.bin")])
def test_other_threads_of_the_program_are_told_where_nothing_else_is_known(error: BaseException) -> None:
    alone = describe_failure(error)["hint"]
    waits, goes = threading.Event(), threading.Event()

    def serve() -> None:
        waits.set()
        goes.wait(30)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert waits.wait(30)
        hint = describe_failure(error)["hint"]
    finally:
        goes.set()
        thread.join()
    assert hint == (alone or OTHER_THREADS)
    assert alone != OTHER_THREADS
