"""The allocator's settings are changed while the program trains."""

import warnings

import corpus_state
import torch

warnings.simplefilter("ignore", FutureWarning)
torch.manual_seed(15)
model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
reserved = []
for step in range(40):
    if step == 1:
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:32")
    if step == 20:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    model(torch.randn(500 * (step % 4 + 1), 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    reserved.append(torch.cuda.memory_reserved())
print(reserved)
corpus_state.report(model=model)
