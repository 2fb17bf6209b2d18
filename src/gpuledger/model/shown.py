"""Values that show themselves where a value is shown: in a notebook."""

from __future__ import annotations

import importlib


class Shown:
    """A value with an HTML form. It is drawn by the room that knows how, imported when a notebook asks."""

    def _repr_html_(self) -> str:
        """Return the value as HTML, the protocol of notebooks."""
        html: str = importlib.import_module("gpuledger.report.html.notebook").html_of(self)
        return html
