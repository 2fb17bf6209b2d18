"""Everything that the allocator counts is printed, step by step and as the whole summary."""
# also: --steps 1:100000

import corpus_state
import torch

torch.manual_seed(26)
model = torch.nn.Sequential(torch.nn.Linear(256, 777), torch.nn.Tanh(), torch.nn.Linear(777, 256)).cuda()
optimizer = torch.optim.NAdam(model.parameters())
for step in range(20):
    points = [torch.cuda.memory_allocated()]
    output = model(torch.randn(100, 256, device="cuda"))
    points.append(torch.cuda.memory_allocated())
    loss = output.square().mean()
    del output
    points.append(torch.cuda.memory_allocated())
    loss.backward()
    points.append(torch.cuda.memory_allocated())
    del loss
    optimizer.step()
    points.append(torch.cuda.memory_allocated())
    optimizer.zero_grad()
    points.append(torch.cuda.memory_allocated())
    print(step, points)
    if step in (1, 5):
        print({name: value for name, value in torch.cuda.memory_stats().items() if value})
print(torch.cuda.memory_summary())
corpus_state.report(model=model)
