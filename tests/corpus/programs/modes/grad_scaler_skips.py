# A scaler finds infinities and leaves steps out.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
scales = []
for number in range(40):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    if number in (1, 2, 4, 5, 12, 14, 15, 30):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
print(scales)
corpus_state.report(model=model, recording_over=True)
