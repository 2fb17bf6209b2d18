"""Looking at other threads' frames keeps nothing of this thread alive."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from gpuledger.collect.adapter.other_threads import frames_of_others, others_run_backward

pytestmark = pytest.mark.torch


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def waiting() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    gc.disable()
    yield
    gc.enable()
    over.set()
    thread.join()


@pytest.mark.usefixtures("waiting")
def test_a_callers_variables_go_when_it_returns() -> None:
    """Needs Python 3.12 to fail: earlier ones end a generator without keeping its callers' frames."""

    def caller() -> weakref.ref[Thing]:
        thing = Thing()
        assert not others_run_backward()
        return weakref.ref(thing)

    assert caller()() is None


@pytest.mark.usefixtures("waiting")
def test_no_frame_of_this_thread_is_given() -> None:
    frames = list(frames_of_others())
    assert any(frame.f_code.co_name == "wait" for frame in frames)
    assert not any(frame.f_code.co_name == "test_no_frame_of_this_thread_is_given" for frame in frames)
