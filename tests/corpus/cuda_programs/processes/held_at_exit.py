"""The program ends with memory held: by globals, by a thread's local, by a cycle; atexit and __del__ still see it."""

import atexit
import threading
import time

import corpus_state
import torch

torch.manual_seed(59)


class Holder:
    def __init__(self, name: str) -> None:
        self.name, self.tensor, self.cycle = name, torch.ones(1 << 18, device="cuda"), self

    def __del__(self) -> None:
        print("deleted", self.name, len(self.tensor), flush=True)


atexit.register(lambda: print("exit:", torch.cuda.memory_allocated(), flush=True))
local = threading.local()
local.held = Holder("local")
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
outputs = []
for _ in range(180):
    outputs.append(model(torch.randn(64, 256, device="cuda")))
    outputs[-1].square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
stream, event = torch.cuda.Stream(), torch.cuda.Event()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    held = model(outputs[0])
corpus_state.report(model=model)
last = Holder("global")
