# Workers of a fork server.
# alone: yes
import corpus_state
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    corpus_state.seed()
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(40, 8))
    for (batch,) in DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="forkserver"):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    corpus_state.report(model=model)


if __name__ == "__main__":
    main()
