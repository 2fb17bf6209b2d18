# Three models that share a layer, each with an optimizer; the steps come in turns.
import corpus_state
import torch

corpus_state.seed()
shared = torch.nn.Linear(8, 8)
models = [torch.nn.Sequential(shared, torch.nn.Linear(8, size)) for size in (2, 3, 4)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
for number in range(60):
    index = number % 3
    optimizers[index].zero_grad()
    models[index](torch.randn(4, 8)).square().mean().backward()
    optimizers[index].step()
corpus_state.report(model=models, recording_over=True)
