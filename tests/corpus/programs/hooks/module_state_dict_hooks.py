# Hooks on a module's state_dict, and before it is loaded.
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


seen = []
model.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(prefix))
model.register_state_dict_post_hook(lambda m, state, prefix, local: state.update(extra=torch.ones(1)))
model.register_load_state_dict_pre_hook(lambda m, state, *_: state.pop("extra", None))
for number in range(30):
    step()
    model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})
print(len(seen))
corpus_state.report(model=model, recording_over=True)
