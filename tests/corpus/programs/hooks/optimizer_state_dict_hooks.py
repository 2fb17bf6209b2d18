# Hooks around an optimizer's state_dict and load_state_dict, in every stage.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


seen = []
optimizer.register_state_dict_pre_hook(lambda *_: seen.append("save"))
optimizer.register_state_dict_post_hook(lambda one, state: {**state, "mine": len(seen)})
optimizer.register_load_state_dict_pre_hook(lambda one, state: seen.append(state.pop("mine")) or state)
for number in range(30):
    step()
    if number % 5 == 1:
        optimizer.load_state_dict(optimizer.state_dict())
print(seen)
corpus_state.report(model=model, recording_over=True)
