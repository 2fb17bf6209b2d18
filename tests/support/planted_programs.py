"""Programs that between them come through every entrance of gpuledger's, to be run with an error planted in one."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL_PASSES = {"GPULEDGER_PASSES": "memory,energy:2,time", "GPULEDGER_STEPS": "2:3"}


@dataclass(frozen=True)
class Program:
    """A program, and what is in the environment when it is recorded."""

    source: str
    environment: dict[str, str] = field(default_factory=lambda: ALL_PASSES)
    before: str = ""
    """Run before the recording begins, bare and recorded."""


_HASH = """
import hashlib
def told(*models):
    hashed = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            hashed.update(name.encode() + value.detach().numpy().tobytes())
    print(hashed.hexdigest(), torch.rand(1).item(), flush=True)
"""

TRAINS = """
import asyncio, os, threading, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from gpuledger import scope

torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    @scope("block")
    def forward(self, x):
        with scope("inside"):
            y = self.inner(x).relu()
        return x + y
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = Block(), Block(), nn.Linear(8, 1)
    def forward(self, x):
        x = self.a(x)
        x = checkpoint(self.b, x, use_reentrant=False)
        with scope("head"):
            return self.head(x)
net, loose = Net(), nn.Parameter(torch.ones(8))
adam = torch.optim.Adam([*net.parameters(), loose], lr=0.01)
lbfgs = torch.optim.LBFGS(net.head.parameters(), max_iter=2)
async def task(name):
    with scope(name):
        await asyncio.sleep(0)
        return net.head(torch.ones(2, 8)).sum().item()
async def tasks():
    return await asyncio.gather(task("one"), task("two"))
def step(number):
    adam.zero_grad()
    x = torch.randn(4, 8, requires_grad=True)
    loss = (net(x * loose).square().mean())
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()
    adam.step()
    def closure():
        lbfgs.zero_grad()
        again = net(torch.ones(2, 8)).square().mean()
        again.backward()
        return again
    lbfgs.step(closure)
    with torch.no_grad():
        net(torch.ones(2, 8))
    try:
        net(torch.ones(2, 9))
    except RuntimeError as error:
        print(number, str(error)[:20])
    print(number, loss.item(), asyncio.run(tasks()), flush=True)
def elsewhere():
    other = Net()
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2, 8)).sum().backward()
    sgd.step()
for number in range(1, 10):
    step(number)
    if number in (2, 4):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    if number in (2, 4):
        child = os.fork()
        if not child:
            net(torch.ones(2, 8)).sum().backward()
            os._exit(3)
        print(os.waitpid(child, 0)[1])
told(net)
"""

CALLS = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
with torch.inference_mode():
    for number in range(18):
        print(net(torch.randn(2, 8)).sum().item())
for number in range(3):
    net(torch.ones(2, 8)).sum()
told(net)
"""

SPAWNED = """
import sys
sys.orig_argv = [*sys.orig_argv, "--multiprocessing-fork"]
"""

DISTRIBUTED = """
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
wrapped = None
for number in range(1, 10):
    if wrapped is None or number == 3:
        wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True)
    sgd.zero_grad()
    loss = wrapped(torch.randn(4, 8)).square().sum()
    loss.backward()
    sgd.step()
    print(loss.item())
told(net)
distributed.destroy_process_group()
"""

PROFILES = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(8, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
def steps(count):
    for _ in range(count):
        sgd.zero_grad()
        net(torch.randn(4, 8)).sum().backward()
        sgd.step()
steps(6)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    steps(2)
print(len(profiler.key_averages()) > 3)
steps(6)
told(net)
"""

LOADS = """
import threading, torch
from torch import nn
torch.manual_seed(0)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((8,), float(index))
net = nn.Linear(8, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
        sgd.zero_grad()
        net(batch).sum().backward()
        sgd.step()
        print(batch[:, 0].tolist())
    for thread in threading.enumerate():  # of the queues, which end by themselves a little later
        if thread is not threading.main_thread():
            thread.join(10)
told(net)
"""

MARKS = """
import torch
from torch import nn
torch.manual_seed(0)
import contextlib, os, sys
net = nn.Linear(8, 2)
momentum = torch.zeros(2)
def update(bias):
    with torch.no_grad():
        bias.sub_(0.1 * momentum.mul_(0.9).add_(bias.grad))
    bias.grad = None
net.bias.register_post_accumulate_grad_hook(update)
def step():
    net.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    return net.weight.grad.sum().item()
session = sys.modules["gpuledger.collect.session.active"]  # _session: a call would be one more entrance of ours
for number in range(12):
    print(step())
    if session._session is not None:
        session._session.mark_step()
told(net)
"""

RUNS_OUT = """
import torch, sys
from torch import nn
torch.manual_seed(0)
net = nn.Linear(8, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
session = sys.modules["gpuledger.collect.session.active"]
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.adapter import torch_private
observers = []
torch_private.watch_out_of_memory = observers.append
torch_private.light_snapshot = lambda: {"segments": [{"device": 0, "blocks": [{"state": "inactive", "size": 5}]}]}
if session._session is not None:
    running = session._session
    running.guard(lambda: out_of_memory.watch(running.guard.for_good, running.ran_out_of_memory))()
for number in range(8):
    sgd.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    for observer in observers:
        observer(0, 1, 2, 3)
    sgd.step()
told(net)
"""

ASKED = """
import os, torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(8, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(32):
    if number == 4:
        place = os.path.join(os.environ["GPULEDGER_RUN"], "asked")
        if os.path.isdir(os.path.dirname(place)):
            open(place, "w").close()
    sgd.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    sgd.step()
told(net)
"""

PROGRAMS = {
    "runs out": Program(RUNS_OUT),
    "marks": Program(MARKS),
    "calls": Program(CALLS),
    "spawned": Program(CALLS, before=SPAWNED),
    "asked": Program(ASKED, {"GPULEDGER_PASSES": "memory", "GPULEDGER_STEPS": "1:2", "GPULEDGER_LISTEN": "1"}),
    "distributed": Program(DISTRIBUTED),
    "profiles": Program(PROFILES),
    "loads": Program(LOADS),
    "trains": Program(TRAINS),
}
"""By name, the quick ones first."""

for _name, _program in list(PROGRAMS.items()):
    PROGRAMS[_name] = Program(_HASH + _program.source, _program.environment, _program.before)
