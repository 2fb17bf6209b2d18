# Distillation: a frozen teacher in evaluation mode, a student and losses of both kinds.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(device).eval().requires_grad_(False)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
for _ in range(25):
    inputs = torch.randn(16, 8, device=device)
    labels = inputs[:, :4].argmax(1)
    with torch.inference_mode():
        soft = teacher(inputs).div(2).softmax(1)
    logits = model(inputs)
    near = nn.functional.kl_div(logits.div(2).log_softmax(1), soft.clone(), reduction="batchmean")
    loss = 0.5 * near + 0.5 * nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=[teacher, model], recording_over=True)
