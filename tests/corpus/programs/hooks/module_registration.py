# Global hooks on the registration of parameters, buffers and modules.
import corpus_state
import torch
from torch.nn.modules import module as hooks

corpus_state.seed()
order = []
hooks.register_module_parameter_registration_hook(lambda one, name, value: order.append(name))
hooks.register_module_buffer_registration_hook(lambda one, name, value: order.append(name))
hooks.register_module_module_registration_hook(lambda one, name, value: order.append(name))
for number in range(20):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
print(len(order), order[:9])
corpus_state.report(model=model)
