# Lists the attributes of modules, parameters, optimizers and classes in every stage.
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


for number in range(30):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        print(number, sorted(vars(model)), sorted(vars(model[0])), sorted(vars(model[0].weight)))
        print(sorted(vars(optimizer)), len(dir(torch.nn.Module)), len(dir(torch.optim.Optimizer)))
        print({name: len(value) for name, value in vars(model[0]).items() if isinstance(value, dict)})
corpus_state.report(model=model, recording_over=True)
