# torch.export in strict mode, and fx transformation, between training steps.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(3):
    step()
program = torch.export.export(model, (torch.randn(8, 8),), strict=False)
print([node.op for node in program.graph.nodes], len(program.state_dict))
traced = torch.fx.symbolic_trace(model)
for node in traced.graph.nodes:
    if node.op == "call_module" and node.target == "1":
        node.target = "0"
print(sorted({node.target for node in traced.graph.nodes if node.op == "call_module"}))
for _ in range(21):
    step()
again = program.module()(torch.ones(8, 8))
print(torch.equal(program.module()(torch.ones(8, 8)), again))
corpus_state.report(model=model, recording_over=True)
