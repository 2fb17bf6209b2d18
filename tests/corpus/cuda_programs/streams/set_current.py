"""The whole training runs on a stream that is set once, and an external stream is wrapped around the same handle."""

import corpus_state
import torch

torch.manual_seed(4)
stream = torch.cuda.Stream()
torch.cuda.set_stream(stream)
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
external = torch.cuda.ExternalStream(stream.cuda_stream)
seen = set()
model.register_forward_hook(lambda *_: seen.add(torch.cuda.current_stream() == stream))
for step in range(30):
    with torch.cuda.stream(external if step % 2 else stream):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(96, 300, device="cuda")), torch.arange(96, device="cuda") % 10
        )
        loss.backward()
        seen.add(torch.cuda.current_stream().cuda_stream == stream.cuda_stream)
        optimizer.step()
        optimizer.zero_grad()
print(seen, torch.cuda.current_stream() == stream, f"{loss.item():.6f}")
corpus_state.report(model=model)
