# A plain training: every stage of a recording, and then nothing of it.
# also: --steps 1:100000
# also: --steps 20:22
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
corpus_state.report("before", model=model)
for number in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    if number in (1, 4, 14):
        corpus_state.report(f"step {number}", model=model)
print(f"{loss.item():.9f}")
corpus_state.report(model=model, recording_over=True)
