"""Functions shared by the commands and the Python API: record, watch, load and compare runs, check the machine.

Connects ``collect``, ``analyze`` and the file readers. May import every package except ``cli``, ``live`` and
``integrations``. ``cli``, ``live`` and ``integrations`` may import it. Start reading at ``runs``.
"""

from gpuledger.model.shown import render_with


def _render_html(value: object) -> str:
    """Return a value as HTML. Imports the report's renderer on first use, so that ``import gpuledger`` stays light."""
    from gpuledger.report.html.notebook import html_of

    return html_of(value)


render_with(_render_html)
