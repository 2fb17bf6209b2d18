"""COO and CSR tensors on the simulated GPU: results are like those of a CPU, and no real tensor is filled for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch._subclasses import fake_tensor

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]
ROWS, COLUMNS, WIDTH = 256, 384, 32
_FLOAT, _INDEX = 4, 8
_COLUMN_OF = torch.arange(3 * ROWS).view(3, ROWS).mul(7).remainder(COLUMNS)
INDICES = torch.stack([torch.arange(ROWS).repeat(3), _COLUMN_OF.flatten()])
COUNT = INDICES.shape[1]


def coo(device: str, *, grad: bool = False) -> Any:
    """Return a matrix without equal indices."""
    values = torch.ones(COUNT, device=device, requires_grad=grad)
    return torch.sparse_coo_tensor(INDICES.to(device), values, (ROWS, COLUMNS))


def csr(device: str, *, grad: bool = False) -> Any:
    """Return the same matrix, compressed."""
    whole = torch.sparse_coo_tensor(INDICES, torch.ones(COUNT), (ROWS, COLUMNS)).to_sparse_csr()
    values = torch.ones(COUNT, device=device, requires_grad=grad)
    return torch.sparse_csr_tensor(whole.crow_indices().to(device), whole.col_indices().to(device), values, whole.shape)


def table(device: str, rows: int = COLUMNS, columns: int = WIDTH, *, grad: bool = False) -> torch.Tensor:
    """Return a dense matrix."""
    return torch.ones(rows, columns, device=device, requires_grad=grad)


def full(device: str) -> torch.Tensor:
    """Return a dense matrix of the size of the sparse ones."""
    return table(device, ROWS, COLUMNS)


def gradient(result: Any, of: torch.Tensor) -> torch.Tensor:
    """Return a gradient of the sum of a result."""
    (result if result.layout is torch.strided else result.to_dense()).sum().backward()
    assert of.grad is not None
    return of.grad


def _of_values(apply: Callable[[Any], Any], make: Any = coo) -> Callable[[str], torch.Tensor]:
    def run(device: str) -> torch.Tensor:
        values = torch.ones(COUNT, device=device, requires_grad=True)
        parts = make(device)
        if make is coo:
            sparse = torch.sparse_coo_tensor(parts._indices(), values, parts.shape)
        else:
            sparse = torch.sparse_csr_tensor(parts.crow_indices(), parts.col_indices(), values, parts.shape)
        return gradient(apply(sparse), values)

    return run


def _of_table(apply: Callable[[Any, Any], Any], make: Any) -> Callable[[str], torch.Tensor]:
    def run(device: str) -> torch.Tensor:
        dense = table(device, grad=True)
        return gradient(apply(make(device), dense), dense)

    return run


OPERATIONS: dict[str, Callable[[str], Any]] = {
    "moved": lambda device: coo("cpu").to(device),
    "moved compressed": lambda device: csr("cpu").to(device),
    "made there": lambda device: torch.sparse_coo_tensor(INDICES, torch.ones(COUNT), (ROWS, COLUMNS), device=device),
    "half": lambda device: coo(device).half(),
    "half compressed": lambda device: csr(device).half(),
    "mm": lambda device: torch.sparse.mm(coo(device), table(device)),
    "mm compressed": lambda device: torch.sparse.mm(csr(device), table(device)),
    "operator": lambda device: coo(device) @ table(device),
    "operator compressed": lambda device: csr(device) @ table(device),
    "dense first": lambda device: table(device, WIDTH, ROWS) @ coo(device),
    "vector": lambda device: coo(device) @ torch.ones(COLUMNS, device=device),
    "addmm": lambda device: torch.sparse.addmm(table(device, ROWS, WIDTH), coo(device), table(device)),
    "batch": lambda device: torch.bmm(torch.stack([coo(device).coalesce()] * 2), table(device).expand(2, -1, -1)),
    "gradient of table": _of_table(torch.sparse.mm, coo),
    "gradient of table, compressed": _of_table(torch.sparse.mm, csr),
    "gradient of table, operator": _of_table(lambda sparse, dense: sparse @ dense, csr),
    "gradient of values": _of_values(lambda sparse: torch.sparse.mm(sparse, table(str(sparse.device)))),
    "gradient of product of sums": _of_values(lambda sparse: (sparse * 2 + sparse) @ table(str(sparse.device))),
    "gradient of softmax": _of_values(lambda sparse: torch.sparse.softmax(sparse, 1)),
    "gradient of sum": _of_values(lambda sparse: torch.sparse.sum(sparse)),
    "gradient of dense": _of_values(lambda sparse: sparse.to_dense()),
    "add": lambda device: (coo(device) + coo(device)).coalesce(),
    "subtract": lambda device: (coo(device) - coo(device)).coalesce(),
    "subtract from dense": lambda device: full(device) - coo(device),
    "multiply": lambda device: coo(device).coalesce() * coo(device).coalesce(),
    "multiply by dense": lambda device: coo(device).coalesce() * full(device),
    "multiply by number": lambda device: csr(device) * 2.0,
    "sampled": lambda device: torch.sparse.sampled_addmm(
        csr(device), table(device, ROWS), table(device, WIDTH, COLUMNS)
    ),
    "softmax": lambda device: torch.sparse.softmax(coo(device), 1),
    "log_softmax": lambda device: torch.sparse.log_softmax(coo(device), 1),
    "sum of rows": lambda device: torch.sparse.sum(coo(device), 1),
    "sum of all": lambda device: torch.sparse.sum(coo(device), (0, 1)),
    "transposed": lambda device: coo(device).t(),
    "transposed, compressed": lambda device: csr(device).t(),
    "to compressed": lambda device: coo(device).to_sparse_csr(),
    "to coordinates": lambda device: csr(device).to_sparse_coo(),
    "to dense": lambda device: csr(device).to_dense(),
    "from dense": lambda device: torch.eye(ROWS).to(device).to_sparse(),
    "from dense, compressed": lambda device: torch.eye(ROWS).to(device).to_sparse_csr(),
    "rows": lambda device: coo(device).index_select(0, torch.arange(5, device=device)),
    "joined": lambda device: torch.cat([coo(device), coo(device)], 1),
    "negative": lambda device: -coo(device),
    "rectified": lambda device: torch.relu(coo(device).coalesce()),
    "dropped": lambda device: torch.sparse_coo_tensor(
        coo(device)._indices(), coo(device)._values() * 0.5, (ROWS, COLUMNS)
    ),
    "parts": lambda device: csr(device).values() + csr(device).col_indices(),
}
"""Name -> what is done on a device. The indices are known, so a number of entries is that of the CPU."""


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the operators that torch runs on real zeros from now on."""
    found: list[str] = []
    plain = fake_tensor.run_fallback_kernel

    def run(mode: Any, func: Any, *others: Any) -> Any:
        found.append(str(func))
        return plain(mode, func, *others)

    monkeypatch.setattr(fake_tensor, "run_fallback_kernel", run)
    return found


@contextmanager
def on_gpu() -> Iterator[list[str]]:
    """Simulate a GPU and yield what is said."""
    said: list[str] = []
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), said.append):
        yield said


@pytest.fixture
def gpu() -> Iterator[None]:
    """Simulate a GPU."""
    with on_gpu():
        yield


def described(tensor: Any) -> tuple[Any, ...]:
    """Return what a CPU's result and a simulated one have in common."""
    entries = None if tensor.layout is torch.strided else tensor._nnz()
    return tensor.layout, tuple(tensor.shape), tensor.dtype, entries


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_result_is_like_that_of_a_cpu_and_is_not_computed(name: str, filled: list[str]) -> None:
    expected = described(OPERATIONS[name]("cpu"))
    with on_gpu() as said:
        result = OPERATIONS[name]("cuda")
        assert result.device.type == "cuda"
        assert described(result) == expected
    assert filled == []
    assert not [sentence for sentence in said if "not included" in sentence]


def bytes_in_use(make: Callable[[], object]) -> int:
    """Return the bytes that a result keeps, rounded as the allocator does."""
    before = torch.cuda.memory_allocated()
    kept = make()
    used = torch.cuda.memory_allocated() - before
    del kept
    return used


def rounded(*sizes: int) -> int:
    """Return the bytes of blocks of these sizes."""
    return sum(-(-size // 512) * 512 for size in sizes)


@pytest.mark.usefixtures("gpu")
def test_a_moved_matrix_has_the_memory_of_its_parts() -> None:
    pairs = rounded(COUNT * 2 * _INDEX, COUNT * _FLOAT)
    rows = rounded((ROWS + 1) * _INDEX, COUNT * _INDEX, COUNT * _FLOAT)
    assert bytes_in_use(lambda: coo("cpu").to("cuda")) == pairs
    assert bytes_in_use(lambda: csr("cpu").to("cuda")) == rows
    one, other = coo("cuda"), csr("cuda")
    assert bytes_in_use(one.clone) == bytes_in_use(one.t) == pairs
    assert bytes_in_use(other.clone) == rows
    assert bytes_in_use(other.t) == 0, "the same memory, read by columns"
    assert bytes_in_use(other.half) == rounded((ROWS + 1) * _INDEX, COUNT * _INDEX, COUNT * 2)
    whole = one.coalesce()
    assert bytes_in_use(whole.to_sparse_csr) == rounded((ROWS + 1) * _INDEX), "columns and values are shared"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", [coo, csr])
def test_a_product_needs_zeros_beside_its_result(make: Any) -> None:
    sparse, dense = make("cuda"), table("cuda")
    result_bytes = ROWS * WIDTH * _FLOAT
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    product = sparse @ dense
    assert torch.cuda.memory_allocated() - before == result_bytes
    assert torch.cuda.max_memory_allocated() - before >= 2 * result_bytes
    assert product.shape == (ROWS, WIDTH)


def test_a_sparse_result_that_is_not_simulated_is_said() -> None:
    with on_gpu() as said:
        torch.expm1(coo("cuda").coalesce())
    assert [sentence for sentence in said if "sparse result of aten.expm1.default is not included" in sentence]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", [coo, csr])
@pytest.mark.parametrize("name", ["add_", "sub_"])
def test_a_sum_in_place_is_in_the_same_tensor(make: Any, name: str) -> None:
    first, second = make("cuda"), make("cuda")
    assert getattr(first, name)(second) is first
    assert first._nnz() == 2 * COUNT, "the entries of both: which are equal is not known"
