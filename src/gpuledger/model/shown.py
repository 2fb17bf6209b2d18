"""Values that show themselves as HTML where a notebook asks."""

from __future__ import annotations

from collections.abc import Callable

_render: Callable[[object], str] | None = None


def render_with(render: Callable[[object], str]) -> None:
    """Let ``render`` draw every :class:`Shown` value. ``gpuledger.services`` registers the report's renderer."""
    global _render
    _render = render


class Shown:
    """A value with an HTML form, drawn by the renderer that was registered with :func:`render_with`."""

    def _repr_html_(self) -> str | None:
        """Return the value as HTML, the protocol of notebooks; None where no renderer is registered."""
        return None if _render is None else _render(self)
