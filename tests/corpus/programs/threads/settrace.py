# Functions for tracing and profiling that every new thread gets.
import threading

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


lines, calls = [], []


def trace(frame, event, argument):
    if frame.f_code.co_name != "job":
        return None
    lines.append((event, frame.f_lineno))
    return trace


def profile(frame, event, argument):
    if frame.f_code.co_name == "job":
        calls.append(event)


def job():
    step()
    step()


threading.settrace(trace)
threading.setprofile(profile)
for _ in range(15):
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
threading.settrace(None)
threading.setprofile(None)
print(lines[:6], len(lines), len(calls))
corpus_state.report(model=model)
