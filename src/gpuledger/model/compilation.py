"""What ``torch.compile`` did in one process, as in its manifest."""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.model.json_object import JsonObject


@dataclass(frozen=True, kw_only=True)
class CompiledRegion(JsonObject):
    """One function that ``torch.compile`` compiled or tried to. ``source`` is its first line, as FILE:LINE.

    ``reasons`` has the first guards that failed, so that it was compiled again. ``failure`` says why it runs eagerly,
    or does so for new inputs. ``uncaptured`` says why it runs without a CUDA graph, although one was asked for.
    """

    source: str
    function: str
    compilations: int
    seconds: float
    recompilations: int = 0
    reasons: tuple[str, ...] = ()
    failure: str | None = None
    uncaptured: str | None = None


@dataclass(frozen=True, kw_only=True)
class GraphBreak(JsonObject):
    """A line that breaks graphs, as FILE:LINE, with the graphs and compile time of the code after it."""

    source: str
    reason: str
    count: int
    graphs: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Compilation(JsonObject):
    """What ``torch.compile`` did: the number of graphs, the time it took, and graph breaks by reason.

    ``regions`` and ``places`` are those with the longest compile times. ``unread`` says why they are incomplete. There
    are no graphs and no regions if a module was to run compiled, and nothing was compiled.
    """

    graphs: int
    seconds: float
    breaks: Mapping[str, int] | None = None
    regions: tuple[CompiledRegion, ...] = ()
    places: tuple[GraphBreak, ...] = ()
    unread: str | None = None

    @property
    def is_done(self) -> bool:
        """Return whether anything was compiled."""
        return self.graphs > 0
