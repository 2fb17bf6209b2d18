"""Loaded by Python's startup in every process below ``gpuledger run``, before the program's first line.

Uses the standard library only, in a syntax that old Python versions parse, because a recorded command can start any
Python. It waits until the program imports torch. Before that, it removes itself from ``sys.path`` and loads the
``sitecustomize`` that it shadows, so that the program finds the interpreter unchanged.

Python's options: ``-S`` loads no site module, and ``-I`` and ``-E`` ignore PYTHONPATH, so such a process is not
recorded. ``usercustomize`` and ``.pth`` files work as usual: the first is loaded after this file, the others before.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _step_aside():
    """Load the ``sitecustomize`` that this one shadows. Without one, fail as Python would.

    Raises:
        ImportError: there is none. Python's startup expects this error and continues.
    """
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


def _is_launched_run(place):
    """Return whether this process was started for this run. Another run can have replaced it since."""
    run_id, _, launched = os.environ.get("GPULEDGER_RUN_ID", "").partition(" ")
    if not run_id or launched != place:
        return True
    with open(os.path.join(place, "manifest.json")) as stream:
        return run_id in stream.read()


def _leave_note(text):
    """Write to the run why this process is not recorded."""
    try:
        if not _is_launched_run(os.environ["GPULEDGER_RUN"]):
            return
        directory = os.path.join(os.environ["GPULEDGER_RUN"], "notes")
        if not os.path.isdir(directory):
            os.makedirs(directory)
        with open(os.path.join(directory, "%d.txt" % os.getpid()), "a") as stream:
            stream.write(text + "\n")
    except (OSError, KeyError, ValueError):
        return  # the directory is missing or the disk is full, or the variable is unset: do not disturb the program


def _is_hidden():
    """Return whether the program has a module with the name of this package, which would be confused with it."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    if "gpuledger" in sys.modules:
        found = getattr(sys.modules["gpuledger"], "__file__", None)
    else:
        from importlib.machinery import PathFinder

        found = getattr(PathFinder.find_spec("gpuledger"), "origin", None)
    return found is not None and os.path.dirname(os.path.abspath(found)) != package


def _start():
    if _is_hidden():
        _leave_note("%s was not recorded: the program has a module called gpuledger" % sys.executable)
        return
    import gc  # here, because a program without torch may not have it

    collects = gc.isenabled()
    gc.disable()  # these objects stay: a collection would go through all of the program's in vain
    try:
        from gpuledger.collect.session.active import start_from_environment
    except Exception as error:
        _leave_note("%s was not recorded: %s: %s" % (sys.executable, type(error).__name__, error))
        return
    finally:
        if collects:
            gc.enable()
    try:
        start_from_environment()
        if os.environ.get("GPULEDGER_LISTEN"):
            from gpuledger.collect.session.on_demand import listen_from_environment

            listen_from_environment()
    except Exception as error:
        _leave_note("The recording could not start: %s: %s" % (type(error).__name__, error))


def _place_run():
    """Make the run's path absolute, for child processes with another working directory."""
    place = os.path.abspath(os.environ["GPULEDGER_RUN"])
    if os.environ.get("GPULEDGER_RUN_ID", "").partition(" ")[2] == place:
        return  # the launcher's own value: its directory can be a link, under any name
    os.environ["GPULEDGER_RUN"] = place if place.endswith(".ledger") else place + ".ledger"


_EXEC_MODULE = """
def make_exec_module(watch, loader, execute):
    def exec_module(module):
        watch.put_back(loader, execute)
        execute(module)
        watch.torch_is_loaded()
    return exec_module
"""
"""Compiled under the file name of Python's import machinery.

Python removes such frames from tracebacks, so a failing import looks the same as without gpuledger.
"""


def _make_exec_module(*arguments):
    names = {"__name__": __name__}
    exec(compile(_EXEC_MODULE, "<frozen importlib._bootstrap_external>", "exec"), names)  # noqa: S102 - our own text
    return names["make_exec_module"](*arguments)  # type: ignore[operator] # defined by the code that was just run


class _TorchWatch(object):
    """A finder that handles torch only, and delegates to the finders after it."""

    def find_spec(self, name, path=None, target=None):
        """Return torch's own spec, with a loader that calls back after torch has been imported."""
        if name != "torch":
            self._look_for_torch()
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._prepare(spec)
                return spec
        return None

    def _look_for_torch(self):
        """Start if torch was imported without this finder, through a finder of the program that precedes it."""
        torch = sys.modules.get("torch")
        loading = getattr(getattr(torch, "__spec__", None), "_initializing", True)
        if torch is not None and not loading:
            self.torch_is_loaded()

    def _prepare(self, spec):
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return
        try:
            spec.loader.exec_module = _make_exec_module(self, spec.loader, execute)
        except AttributeError:
            _leave_note("Nothing was recorded: the loader that imports torch does not allow it")

    def put_back(self, loader, execute):
        """Restore a loader's own function."""
        try:
            del loader.exec_module
        except AttributeError:
            loader.exec_module = execute

    def torch_is_loaded(self):
        """Start recording, once."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _start()


if os.environ.get("GPULEDGER_RUN") and sys.version_info >= (3, 5):  # before that, there are other finders and no torch
    _place_run()
    sys.meta_path.insert(0, _TorchWatch())
_step_aside()
