"""Loaded by Python's own start-up in every process below ``gpuledger run``, before the program's first line.

Standard library only, in a syntax that old Pythons parse: any Python can be below a recorded command. It does two
things: it loads the sitecustomize that it stands in front of, and it waits for the program to import torch.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Load the sitecustomize this one stands in front of, as if this one were not there."""
    import importlib.machinery
    import importlib.util

    others = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _leave_note(text):
    """Tell the run why this process is not in it."""
    try:
        directory = os.path.join(os.environ["GPULEDGER_RUN"], "notes")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, "%d.txt" % os.getpid()), "a") as stream:
            stream.write(text + "\n")
    except OSError:
        return  # the run's directory is gone or full: the program matters more


def _start():
    try:
        from gpuledger.collect.session import start_from_environment
    except Exception as error:
        _leave_note("%s was left alone: %s: %s" % (sys.executable, type(error).__name__, error))
        return
    try:
        start_from_environment()
    except Exception as error:
        _leave_note("Recording could not start: %s: %s" % (type(error).__name__, error))


class _TorchWatch(object):
    """A finder that answers for torch alone, and asks the others what to answer."""

    def find_spec(self, name, path=None, target=None):
        """Return torch's own spec, its loader set to call us when torch has been imported."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._prepare(spec)
                return spec
        return None

    def _prepare(self, spec):
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                del loader.exec_module
            except AttributeError:
                loader.exec_module = execute
            execute(module)
            _start()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            _leave_note("torch's loader cannot be watched: nothing was recorded")


if os.environ.get("GPULEDGER_RUN"):
    sys.meta_path.insert(0, _TorchWatch())
_chain()
