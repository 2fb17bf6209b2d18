"""What commands and Python users both call: record, watch, load and compare runs.

Joins collecting, posting and reading; may import every package but ``cli``, ``live`` and ``integrations``. Begin with
``api``.
"""

from gpuledger.model.shown import render_with


def _render_html(value: object) -> str:
    """Return a value as HTML; the report's renderer is imported when a notebook first asks."""
    from gpuledger.report.html.notebook import html_of

    return html_of(value)


render_with(_render_html)
