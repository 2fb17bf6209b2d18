"""What every test begins with."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

# A slow machine fails no test. The examples are the same every time, so that a change fails by itself only;
# `pytest --hypothesis-profile=random` looks for others.
_no_clock: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("random", **_no_clock)
hypothesis.settings.register_profile("gpuledger", **_no_clock, derandomize=True)
hypothesis.settings.load_profile("gpuledger")

# Two workers have two cores: threads that wait for each other in operators of a few numbers only burn them. Read when
# torch and NumPy are loaded, here and in every program that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without vector instructions torch's compiler makes a kernel in half the time, looks for none, and compiles its headers
# once for all programs; and no program starts workers to compile two kernels. Read as above.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Otherwise, a request to the tests' own storage fails if a busy machine holds its threads up for five seconds.
os.environ.setdefault("FSSPEC_S3", '{"config_kwargs": {"connect_timeout": 600, "read_timeout": 600}}')

# A shell has what it starts in the background ignore the first two, nohup the last. What tests start would inherit it.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Thousands of tests are collected, none of which becomes garbage: walks over them took a tenth of that time.
gc.disable()

MANY_OBJECTS, MANY_MODULES = 20_000, 50


def pytest_configure(config: pytest.Config) -> None:
    """Have the temporary files of all tests, and of what they start, in a directory that is removed at the end.

    A fork of a test ends without removing its own, and so does what is killed. The directories of ``tmp_path`` stay
    where pytest keeps them for a while. The name is short, as the path of a socket has at most 107 characters.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = directory = tempfile.mkdtemp(prefix="gl-")
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, or one worker would be at it when all others have ended."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """Keep what is loaded by now, torch above all, out of the hundreds of walks over all objects that recordings do.

    Next to none of these objects is garbage: to look for it took half a second in each worker.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_is_loaded_is_set_aside() -> None:
    """Do the same for what the tests of another module have loaded or left.

    And forget the code that Inductor has generated for them: each recording of this process would read all of it. And
    let garbage be collected, whatever they have left.
    """
    gc.enable()
    generated: Any = sys.modules.get("torch._inductor.codecache")
    if generated is not None:
        generated.PyCodeCache.cache_clear()
    if len(gc.get_objects()) > MANY_OBJECTS:
        set_aside_what_is_loaded()


@pytest.fixture(autouse=True)
def what_a_test_has_loaded_is_set_aside() -> Iterator[None]:
    """Do the same for libraries that a test is the first to import."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + MANY_MODULES:
        set_aside_what_is_loaded()


def set_aside_what_is_loaded() -> None:
    """Have no walk over all objects come to those that are alive now."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """Return a maker of texts that the tests of all workers share: the first that asks for a name makes its text."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def make_once(name: str, make: Callable[[], str]) -> str:
        place = shared / f"made-once-{name}"
        with place.open("a+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            text = stream.read()
            if not text:
                text = make()
                stream.write(text)
        return text

    return make_once


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what this process starts as Python be a fork of an interpreter that has loaded torch."""
    from quick import quick_python

    monkeypatch.setattr(sys, "executable", quick_python())


@pytest.fixture(autouse=True)
def no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of the terminal that runs the tests, or of the test runner's workers, reach what is tested."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)


@pytest.fixture(autouse=True)
def no_hooks_of_compiled_programs() -> Iterator[None]:
    """Take out the hooks that stay where a test has compiled something while it recorded."""
    yield
    optimizers = sys.modules.get("torch.optim.optimizer")
    if optimizers is None:
        return
    for hooks in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks):
        for number, hook in list(hooks.items()):
            ours: Any = getattr(hook, "__self__", None)
            if type(ours).__name__ == "OptimizerHook" and ours._called is None:
                del hooks[number]
