# Each of torch's optimizers, some with foreach, some with maximize, makes a few steps.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(8, 4)
kinds = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"amsgrad": True, "foreach": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {"maximize": True}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {"foreach": False}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
]
for kind, options in kinds:
    optimizer = kind(model.parameters(), lr=1e-3, **options)
    for _ in range(4):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
    print(kind.__name__, sorted(optimizer.state[model.weight]))
corpus_state.report(model=model)
