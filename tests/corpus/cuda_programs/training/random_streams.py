"""Random numbers on GPU and host, forked, saved, restored and made by a generator of the program's own."""

import hashlib

import corpus_state
import torch

torch.manual_seed(51)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = torch.Generator(device="cuda").manual_seed(5)
kept = None
for step in range(30):
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(step)
        noise = torch.randn(64, 64, device="cuda")
    model(noise + torch.rand(64, 64, device="cuda", generator=own)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        kept = torch.cuda.get_rng_state()
    if step == 14:
        torch.cuda.set_rng_state(kept)
states = [torch.cuda.get_rng_state(), own.get_state(), torch.get_rng_state()]
print([hashlib.sha256(bytes(state.tolist())).hexdigest()[:12] for state in states])
print(torch.rand(2, device="cuda").tolist(), torch.cuda.initial_seed(), own.initial_seed())
corpus_state.report(model=model)
