# Saved-tensor hooks are forbidden around some steps, and packed by the program in others.
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


packed = []


def pack(tensor):
    packed.append(tuple(tensor.shape))
    return tensor.clone()


for number in range(24):
    if number % 3 == 0:
        with torch.autograd.graph.disable_saved_tensors_hooks("the program forbids them"):
            step()
            try:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
                    pass
            except RuntimeError as error:
                packed.append(str(error))
    elif number % 3 == 1:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            step()
    else:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            step()
print(len(packed), packed[:4])
corpus_state.report(model=model, recording_over=True)
