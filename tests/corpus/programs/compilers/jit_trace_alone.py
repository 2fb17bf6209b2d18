# torch.jit.trace is the first thing that calls the model.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(4, 4)
traced = torch.jit.trace(model, torch.ones(2, 4))
print(traced.graph.findNode("aten::linear") is not None)
corpus_state.report(model=model)
