# Mixed precision on the CPU, with a scaler that has nothing to do there.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
for number in range(30):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(8, 8))
    scaler.scale(out.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
print(out.dtype, scaler.get_scale())
corpus_state.report(model=model, recording_over=True)
