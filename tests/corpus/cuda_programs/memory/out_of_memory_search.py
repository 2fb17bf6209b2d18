"""The largest batch is searched by doubling until a step runs out of memory, with an observer of the program's own."""

import corpus_state
import torch

torch.manual_seed(29)
torch.cuda.set_per_process_memory_fraction(0.02)
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda device, tried, limit, free: seen.append((device, tried)))
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(rows: int) -> bool:
    try:
        model(torch.ones(rows, 1024, device="cuda")).square().mean().backward()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad()
    return True


rows = 1024
while step(rows):
    rows *= 2
optimizer.zero_grad()
torch.cuda.empty_cache()
print("fits:", rows // 2, seen)
print([step(rows // 2) for _ in range(20)], step(rows), step(rows // 2), len(seen))
corpus_state.report(model=model)
