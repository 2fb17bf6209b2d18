"""Running numbers: of hooks, graph nodes, threads, tasks, executors and processes."""

import asyncio
import concurrent.futures
import multiprocessing
import threading

import corpus_state
import torch

torch.manual_seed(10)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
optimizer = torch.optim.Adam(model.parameters())


async def own_name():
    return asyncio.current_task().get_name()


def numbers():
    handle = model.register_forward_hook(lambda *_: None)
    hook = torch.ones(1, requires_grad=True).register_hook(lambda grad: None)
    step_hook = optimizer.register_step_post_hook(lambda *_: None)
    found = handle.id, hook.id, step_hook.id
    handle.remove(), hook.remove(), step_hook.remove()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        thread = pool.submit(lambda: threading.current_thread().name).result()
    process = multiprocessing.Process(target=print)
    return (*found, threading.Thread().name, thread, asyncio.run(own_name()), process.name)


for step in range(12):
    print(step, numbers())
    loss = model(torch.randn(3, 4)).sum()
    print(loss.grad_fn._sequence_nr(), loss.grad_fn.name())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
corpus_state.report(model=model)
