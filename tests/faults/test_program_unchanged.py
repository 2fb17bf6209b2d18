"""The program notices nothing: what it writes and how it ends are the same bare and recorded, byte for byte."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import quick
from programs import (
    COMPILER_ASIDE,
    MODEL,
    TRAIN,
    TRAIN_WITH_COMPILER,
    Ended,
    bare,
    environment,
    manifest,
    recorded,
    write_script,
)

pytestmark = pytest.mark.torch

ENDS = {
    "sys.exit(3), exit handlers run": TRAIN
    + "import atexit\natexit.register(lambda: print('last'))\nfor _ in range(5): step()\nprint('done')\n"
    + "raise SystemExit(3)",
    "raises before torch": "import os\nprint('so far', flush=True)\n1 / 0",
    "raises in a step": TRAIN + "step()\nmodel(torch.ones(8, 17))",
    "chain of exceptions": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('é') from error",
    "sys.exit(text)": "import sys\nsys.exit('no data')",
    "os._exit(7) in a step": TRAIN + "import os\nmodel(torch.ones(8, 16))\nos._exit(7)",
    "SIGKILL in a step": TRAIN + "import os\nstep(); model(torch.ones(8, 16))\nos.kill(os.getpid(), 9)",
    "interrupts itself in a step": TRAIN + "step()\nraise KeyboardInterrupt",
    "interrupts itself, never having used torch": "import torch\nraise KeyboardInterrupt",
    "aborts": "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()",
    "exit code above 128": "raise SystemExit(200)",
    "syntax error": "def broken(:\n    pass",
    "warning": "import warnings\nwarnings.warn('careful')",
    "torch hidden": "import sys\nsys.modules['torch'] = None\nimport torch",
    "closed stderr": TRAIN + "import os\nos.close(2)\nstep()\nprint('on')",
}

IN_STEPS = {
    "raises in a custom backward, with stacks": TRAIN_WITH_COMPILER
    + """
class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, gradient): raise KeyError("odd")
step()
Odd.apply(model(torch.ones(8, 16))).sum().backward()
""",
    "raises in forward and backward of every step, recorded or not": TRAIN
    + """
import traceback
for _ in range(16):
    step()
    for wrong in (lambda: model(torch.ones(8, 17)), lambda: model(torch.ones(8, 16)).backward()):
        try:
            wrong()
        except RuntimeError:
            traceback.print_exc()
""",
    "raises in a program that only calls": """
import torch, traceback
model = torch.nn.Sequential(torch.nn.Linear(4, 2))
for width in (4, 5, 4, 5, 4, 5):
    try:
        model(torch.ones(1, width))
    except RuntimeError:
        traceback.print_exc()
""",
}
"""Errors that torch's own code passes on, in an interpreter that has loaded torch."""


def both(source: str, directory: Path, words: tuple[str, ...] = (), **how: Any) -> tuple[Ended, Ended]:
    """Return how the program ended bare and recorded, each in the same directory and an interpreter of its own."""
    write_script(directory, source)
    return bare(["train.py", *words], directory, **how), quick.recorded_alone(["train.py", *words], directory, **how)


def both_quick(source: str, directory: Path, words: tuple[str, ...] = (), **how: Any) -> tuple[Ended, Ended]:
    """Return the same of a program whose interpreter had loaded torch before."""
    write_script(directory, source)
    return quick.bare(["train.py", *words], directory, **how), quick.recorded(["train.py", *words], directory, **how)


@pytest.mark.parametrize("name", [*ENDS, *IN_STEPS])
def test_status_stdout_and_stderr_are_the_programs_own(name: str, tmp_path: Path) -> None:
    """With every pass that a user gets; in an interpreter of its own where its end is what is tested."""
    env = environment(GPULEDGER_PASSES="")
    write_script(tmp_path, (ENDS | IN_STEPS)[name])
    alone = quick.bare(["train.py"], tmp_path, env=env)
    below = (quick.recorded_alone if name in ENDS else quick.recorded)(["train.py"], tmp_path, env=env)
    assert below == alone
    run = manifest(tmp_path / "train.ledger")
    assert run["status"] == "complete"
    assert run["exit_status"] == (alone.status if alone.status >= 0 else 128 - alone.status)
    assert run["signal"] == (-alone.status if alone.status < 0 else None)


def test_a_script_that_does_not_exist_is_refused_with_the_status_of_python_and_leaves_no_run(tmp_path: Path) -> None:
    ended, alone = recorded(["missing.py"], tmp_path), bare(["missing.py"], tmp_path)
    assert (ended.status, ended.stdout) == (alone.status, alone.stdout)
    assert ended.stderr == b"gpuledger: error: missing.py: no such script\n"
    assert list(tmp_path.iterdir()) == []


def test_module_not_found(tmp_path: Path) -> None:
    assert recorded(["-m", "no.such.module"], tmp_path) == bare(["-m", "no.such.module"], tmp_path)


SAME = {
    "argv, file, path, name, modules": (
        "import os, sys\nprint(sys.argv, __file__, __name__, sys.path, os.getcwd(), sys.flags, sys.orig_argv[1:])\n"
        "print(sorted(sys.modules), sys.meta_path[-1], len(sys.path_hooks))"
    ),
    "what is set before torch, torch's spec, and what we stand in for: keywords, signatures, names": """
    import inspect, os, pickle, sys
    os.environ["OMP_NUM_THREADS"] = "2"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import importlib.util
    spec = importlib.util.find_spec("torch")
    print(spec.origin, type(spec.loader), "torch" in sys.modules, "numpy" in sys.modules)
    import torch
    print(torch.get_num_threads(), torch.cuda.is_available(), torch.cuda.is_initialized())
    print(type(torch.__loader__), vars(torch.__loader__), torch.__spec__.submodule_search_locations)
    x = torch.ones(3, requires_grad=True)
    print(torch.autograd.grad(outputs=x.square().sum(), inputs=x))
    torch.autograd.backward(tensors=[x.square().sum()])
    class Net(torch.nn.Module):
        def forward(self, x, module=None, result=None): return x if module is None else module
    print(x.grad, Net()(x, module=x + 1), Net()(x, result=2))
    for wrong in (lambda: Net()(x, self=3), lambda: torch.autograd.grad(), lambda: torch.autograd.backward(x=1)):
        try: wrong()
        except TypeError as error: print(error)
    for function in (torch.nn.Module.__call__, torch.autograd.backward, torch.autograd.grad):
        print(inspect.signature(function), function.__qualname__, function.__module__, function.__doc__)
    print(inspect.signature(Net().__call__), pickle.loads(pickle.dumps(torch.autograd.grad)) is torch.autograd.grad)
    """,
}

SAME_IN_STEPS = {
    "a model seeded, saved, copied, scripted, compiled without a break, a class pickled": """
    import copy, io, pickle, random
    import torch
    random.seed(1); torch.manual_seed(1)
    TRAIN
    step(); step()
    print(torch.rand(3), random.random(), step().item())
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [torch.load(buffer, weights_only=False), copy.deepcopy(model), torch.jit.script(model)]
    print([all(map(torch.equal, model.parameters(), c.parameters())) for c in copies], len(buffer.getvalue()))
    print(torch.compile(model, fullgraph=True, backend="eager")(torch.zeros(2, 16)).shape)
    class Config: pass
    print(type(pickle.loads(pickle.dumps(Config()))), pickle.dumps(Config()))
    """.replace("TRAIN", MODEL.replace("\n", "\n    ")),
}


@pytest.mark.parametrize("name", [*SAME, *SAME_IN_STEPS])
def test_the_program_sees_what_it_sees_bare(name: str, tmp_path: Path) -> None:
    compared, source = (both, SAME[name]) if name in SAME else (both_quick, SAME_IN_STEPS[name])
    alone, below = compared(source, tmp_path, words=("--steps", "9", "-q", "--", "-m", "ü"))
    assert alone.status == 0, alone.stderr
    assert below == alone


WORKERS = (
    COMPILER_ASIDE
    + """
import os, sys
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((16,), float(index)), os.getpid() != int(os.environ["MAIN"])
if __name__ == "__main__":
    os.environ["MAIN"] = str(os.getpid())
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch, elsewhere in torch.utils.data.DataLoader(
        Data(), batch_size=2, num_workers=2 if sys.argv[1] == "fork" else 1, multiprocessing_context=sys.argv[1]
    ):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        print(batch[:, 0].tolist(), elsewhere.all().item())
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_workers_work_and_are_not_ranks(method: str, tmp_path: Path) -> None:
    alone, below = both_quick(WORKERS, tmp_path, words=(method,))
    assert alone.status == 0, alone.stderr
    assert below == alone
    assert [place.name for place in tmp_path.glob("train.ledger/rank-*")] == ["rank-0"]


def test_stdin_passes_through(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\nprint(sys.stdin.buffer.read()[::-1])")
    assert recorded(["train.py"], tmp_path, stdin=b"a\x00\xff\n").stdout == b"b'\\n\\xff\\x00a'\n"


def test_binary_stdout_passes_through(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4096)")
    assert recorded(["train.py"], tmp_path, options=()).stdout == bytes(range(256)) * 4096


def test_program_on_stdin(tmp_path: Path) -> None:
    assert recorded(["-", "x"], tmp_path, stdin=b"import sys; print(sys.argv)").stdout == b"['-', 'x']\n"
    assert (tmp_path / "stdin.ledger" / "manifest.json").is_file()


def test_open_descriptors_are_inherited(tmp_path: Path) -> None:
    write_script(tmp_path, "import os\nos.write(9, b'through')")
    command = f"{sys.executable} -m gpuledger run -q train.py 9> nine"
    assert recorded(["--", "sh", "-c", command], tmp_path).status == 0
    assert (tmp_path / "nine").read_bytes() == b"through"


THEIRS = "import sys\nsys.theirs = __name__, __file__\n"


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    write_script(tmp_path, THEIRS, "site/sitecustomize.py")
    source = "import sys, sitecustomize\nprint(sys.theirs, sitecustomize.__spec__.origin, sys.path)"
    alone, below = both(source, tmp_path, env=environment(PYTHONPATH=str(tmp_path / "site")))
    assert b"sitecustomize" in alone.stdout
    assert below == alone


def test_the_users_own_sitecustomize_may_fail(tmp_path: Path) -> None:
    write_script(tmp_path, "raise ValueError('theirs')", "site/sitecustomize.py")
    alone, below = both("print('on')", tmp_path, env=environment(PYTHONPATH=str(tmp_path / "site")))
    assert b"ValueError: theirs" in alone.stderr
    assert below.stdout == alone.stdout
    assert below.stderr == alone.stderr * 2  # once for the launcher, which is a Python program too


def test_relative_script_below_another_directory(tmp_path: Path) -> None:
    write_script(tmp_path, "VALUE = 5", "code/helper.py")
    write_script(tmp_path, "import helper, os\nprint(helper.VALUE, __file__, os.listdir())", "code/train.py")
    (tmp_path / "data").mkdir()
    words = ["../code/train.py"]
    alone = bare(words, tmp_path / "data")
    below = recorded(words, tmp_path / "data", options=("-q", "--out", "../elsewhere"))
    assert below == alone
    assert (tmp_path / "elsewhere.ledger").is_dir()


def test_package_module(tmp_path: Path) -> None:
    write_script(tmp_path, "", "pack/__init__.py")
    write_script(tmp_path, "import sys\nprint(sys.argv, __package__, __spec__.name)", "pack/train.py")
    words = ["-m", "pack.train", "--out", "x", "-q"]
    assert recorded(words, tmp_path) == bare(words, tmp_path)
    assert (tmp_path / "train.ledger").is_dir()
