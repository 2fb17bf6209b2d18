"""Views as HTML: the report, a diff, a notebook's cells.

May import ``base``. Begin with ``data`` and ``payload``.
"""
