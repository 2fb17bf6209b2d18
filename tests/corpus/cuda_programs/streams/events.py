"""Events order two streams, and time what runs between them."""

import corpus_state
import torch

torch.manual_seed(2)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
copier = torch.cuda.Stream(priority=-1)
took_time, waited = 0, 0
for _ in range(40):
    started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    ready = torch.cuda.Event(blocking=True)
    with torch.cuda.stream(copier):
        batch = torch.full((512, 512), 0.5, device="cuda")
        ready.record()
    ready.wait()
    started.record()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ended.record()
    ended.synchronize()
    took_time += started.elapsed_time(ended) > 0
    waited += ready.query()
    copier.wait_event(ended)
print(took_time, waited, copier.priority, copier.query(), round(loss.item(), 6))
corpus_state.report(model=model)
