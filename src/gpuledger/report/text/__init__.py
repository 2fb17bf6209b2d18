"""Views as text: terminal, Markdown, CSV and JUnit XML.

May import ``base`` and ``json``. Start reading at ``text``.
"""
