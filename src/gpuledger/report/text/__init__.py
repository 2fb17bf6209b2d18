"""Views as text: for a terminal, as Markdown, as CSV, as JUnit XML.

May import ``base`` and ``json``. Begin with ``text``.
"""
