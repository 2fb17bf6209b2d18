"""Base class of values with an HTML form in notebooks."""

from __future__ import annotations

from collections.abc import Callable

_render: Callable[[object], str] | None = None


def render_with(render: Callable[[object], str]) -> None:
    """Set the renderer of every :class:`Shown` value. ``gpuledger.services`` registers the report's renderer."""
    global _render
    _render = render


class Shown:
    """A value with an HTML form, rendered by the function given to :func:`render_with`."""

    def _repr_html_(self) -> str | None:
        """Return the value as HTML, as notebooks expect it; None if no renderer is registered."""
        return None if _render is None else _render(self)
