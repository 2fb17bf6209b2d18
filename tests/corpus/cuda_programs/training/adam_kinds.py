"""Adam in all its kinds: a loop, foreach, fused and capturable, one after the other."""

import corpus_state
import torch

torch.manual_seed(41)
models = []
for options in ({"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}):
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True, **options)
    for _ in range(10):
        model(torch.randn(64, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(options, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
    models.append(model)
corpus_state.report(model=models)
