"""What the flight recorder stores in a rank's manifest: out-of-memory errors, censuses of tensors, host memory."""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from dataclasses import dataclass
from typing import Annotated

from gpuledger.files.shapes import Items, ListOf, WholeNumber, maybe
from gpuledger.model.bounds import DEVICE
from gpuledger.model.json_object import JsonObject

_MOST = 64
HOST = -1
"""Device number of the host."""
COUNTED_NODES = 2_000
"""A holder's autograd nodes are counted up to this number. A larger ``length`` means at least that many."""

ANOTHER_THREAD = "another thread"
"""In place of the name of a thread that Python has not started, such as autograd's."""
FIRST_CENSUS_STEPS = 4
"""Steps between the end of the measurements and the first census."""
CENSUS_RATIO = 1.5
"""Ratio of the number of steps at a census to that at the one before."""
GROWN_BYTES = 4 << 20
"""Growth of memory since the first census from which on there is a next one."""
EXPLAINED_FRAC = 0.25
"""Share of the growth from which on what an object has gained explains it."""
FEWEST_TENSORS = 0.05
"""Number of tensors per step by which they must have become more to explain the growth."""
LEAST_KEPT_BYTES = 1024
"""Bytes in tensors that a container must gain with every step. Losses, rates and counts are smaller."""
DATA = "data"
"""Content of a holder that is one tensor, array, bytes or text."""

_FRAMES = ListOf(Items((str, int, str)), most=_MOST)


_WHOLE_FRAC = 0.98
"""Share of the GPU from which on a limit is none: drivers and PyTorch disagree a little on the GPU's size."""


@dataclass(frozen=True, kw_only=True)
class KernelKill(JsonObject):
    """The kernel ended processes because host memory was full.

    ``of_program`` is whether the recorded process was one of them; otherwise one that it started may be.
    ``at_limit`` is whether the limit of their cgroup was reached; otherwise all memory of the machine was in use.
    """

    processes: int
    of_program: bool
    at_limit: bool


@dataclass(frozen=True, kw_only=True)
class FailedAllocation(JsonObject):
    """One allocation that failed because the device was out of memory.

    ``failure_id`` is its number in the tables of failures; None if only these facts are known. ``times`` counts the
    errors from this one to the next that is recorded, until ``last_step``, and ``last_tried_bytes`` is the request of
    the last of them. ``ended_program`` is whether that one ended the program: then ``last_frames``, ``last_module_id``
    and ``last_inputs`` are its own, if ``times`` is more than 1. ``frames`` are file, line and function of the program,
    innermost first; ``inputs`` the shapes of the outermost module's inputs. ``limit_frac`` is the share of
    the GPU that the process may use. ``is_module_by_order`` is whether the module is that of the same request in a
    recorded step. With ``in_backward``, these are the line that called ``backward()``, and the module whose gradients
    were computed. ``is_training`` is the mode of the outermost module that was running.
    ``ring_from_ns`` is the time since which the allocator kept its last events. ``library`` is the one that could not
    allocate, such as NCCL, "" for PyTorch: its error ended the program, and the state is that of the end.

    ``device_idx`` -1 is the host: ``total_bytes`` is what the process may use of it, ``free_bytes`` what the machine
    has available, ``allocated_bytes`` the resident memory, and ``library`` is PyTorch, NumPy, a data worker, or Python.
    ``mapped_bytes`` is the size of the process's address space, if its limit (``ulimit -v``) is ``total_bytes``.
    The program can have handled the error of an operator in a recorded step, and gone on.
    ``killed`` is set if the kernel ended a process instead: then no error shows the request.
    """

    device_idx: Annotated[int | None, maybe(WholeNumber(*DEVICE))] = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    failure_id: int | None = None
    step: int | None = None
    last_step: int | None = None
    last_tried_bytes: int | None = None
    t_ns: int | None = None
    allocated_bytes: int | None = None
    mapped_bytes: int | None = None
    allocations: int | None = None
    times: int = 1
    module_id: int | None = None
    is_module_by_order: bool = False
    frames: Annotated[tuple[tuple[str, int, str], ...], _FRAMES] = ()
    inputs: Annotated[tuple[tuple[int, ...], ...], ListOf(ListOf(int), most=_MOST)] = ()
    thread: str | None = None
    is_main_thread: bool | None = None
    is_capturing: bool | None = None
    ring_from_ns: int | None = None
    limit_frac: float | None = None
    in_optimizer: bool | None = None
    in_backward: bool | None = None
    is_training: bool | None = None
    grad_enabled: bool | None = None
    alloc_conf: str = ""
    library: str = ""
    killed: KernelKill | None = None
    took_ns: int | None = None
    ended_program: bool = False
    last_frames: Annotated[tuple[tuple[str, int, str], ...], _FRAMES] = ()
    last_module_id: int | None = None
    last_inputs: Annotated[tuple[tuple[int, ...], ...], ListOf(ListOf(int), most=_MOST)] = ()

    def own_limit_bytes(self, capacity_bytes: int | None) -> int | None:
        """Return what the program lets PyTorch reserve; None if that is the whole GPU, of ``capacity_bytes``."""
        if not capacity_bytes:
            return None
        if self.total_bytes and self.total_bytes < _WHOLE_FRAC * capacity_bytes:
            return self.total_bytes  # with a limit, the allocator's total is that limit
        if self.limit_frac is not None and self.limit_frac < _WHOLE_FRAC:
            return round(self.limit_frac * capacity_bytes)
        return None


@dataclass(frozen=True, kw_only=True)
class TensorGroup(JsonObject):
    """Live tensors of one device. ``kind`` is the name of the autograd node that made them, or "leaf"."""

    device_idx: Annotated[int, WholeNumber(*DEVICE)]
    kind: str
    tensors: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Holder(JsonObject):
    """The object of the program that explains best what memory has grown since the first census.

    ``kind`` is its class, or graph for a tensor that keeps an autograd graph. ``name`` is what the program calls it,
    ``where`` of what it is that name, and ``path`` how it is reached from a variable. ``length`` is the number of
    elements or autograd nodes, ``more`` how many it has gained. ``content`` is graph (tensors that keep their graphs),
    tensor, exception or "". It is data for one tensor, array, bytes or text, with its bytes as ``length``. ``bound`` is
    the largest number of elements that it keeps, None if there is no limit. ``element_bytes`` and ``element_tensors``
    are what one keeps alive, 0 if that is not known, and ``element_unused_bytes`` are those that are not values of its
    tensors, as the other rows of a storage of which a tensor is one row.
    """

    kind: str
    name: str = ""
    where: str = ""
    path: str = ""
    length: int = 0
    more: int = 0
    content: str = ""
    bound: int | None = None
    element_bytes: int = 0
    element_tensors: float = 0.0
    element_unused_bytes: int = 0

    @property
    def keeps_more_than_values(self) -> bool:
        """Return whether most of what an element keeps are not values of its tensors."""
        return 2 * self.element_unused_bytes > self.element_bytes > 0

    @property
    def shown_name(self) -> str:
        """Return how the program reaches it, or its name."""
        return self.path or self.name


@dataclass(frozen=True, kw_only=True)
class CensusFacts(JsonObject):
    """What the program keeps after one step, and its tensors after the next. ``is_complete`` is False without them all.

    ``groups`` are empty if there was not enough time to count the tensors, if these were no more than before, or if the
    holder explains the growth. ``tensor_references`` counts what refers to the classes of tensors: they become more by
    one with each tensor. ``took_ns`` is the CPU time of the census, without ``count_ns``, that of counting the tensors.
    ``collections`` is how often Python had collected garbage; None if it does not, or if that is not known.
    ``kept`` is the container without a limit that has gained most bytes in tensors, whether they explain the growth of
    memory or not.
    """

    step: int
    took_ns: int
    is_complete: bool
    count_ns: int | None = None
    tensor_references: int | None = None
    collections: int | None = None
    graph_nodes: int = 0
    groups: tuple[TensorGroup, ...] = ()
    holder: Holder | None = None
    kept: Holder | None = None

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of all live tensors."""
        return sum(group.bytes for group in self.groups)

    @property
    def tensors(self) -> int:
        """Return the number of live tensors."""
        return sum(group.tensors for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class KeptAddresses(JsonObject):
    """Addresses of blocks of the recorded steps that were still allocated at the end of ``step``, the last step.

    ``hidden`` are those that no Python object refers to, only a graph that keeps them for backward. ``counts`` are
    numbers of live tensors: the step after which they were counted, and the number.
    """

    step: int
    addresses: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    counts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostMemoryKind(JsonObject):
    """One kind of host memory in bytes: resident, shared, workers (child processes), pinned, dev_shm."""

    kind: str
    bytes: int
    peak_bytes: int
