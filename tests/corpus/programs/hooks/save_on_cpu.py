# torch's save_on_cpu, and saved-tensor hooks that are forbidden elsewhere.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    optimizer.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        model(torch.ones(1, 8))
corpus_state.report(model=model, recording_over=True)
