# Code objects of torch's functions are kept, copied into functions of the program's own, and called.
import dis
import types

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


kept = {one: one.__code__.co_name for one in (torch.nn.Module._call_impl, torch.optim.SGD.step, torch.Tensor.backward)}
own_call = types.FunctionType(torch.nn.Module._call_impl.__code__, torch.nn.Module._call_impl.__globals__, "own_call")
for number in range(24):
    step()
    if number == 4:
        print(own_call(model, torch.ones(2, 8)).shape, own_call.__code__.co_argcount, own_call.__defaults__)
        print([one.__code__.co_varnames[:2] for one in kept])
        print("forward" in " ".join(torch.nn.Module._call_impl.__code__.co_names))
print(list(kept.values()), all(callable(one) for one in kept), dis.stack_effect(dis.opmap["POP_TOP"]))
corpus_state.report(model=model, recording_over=True)
