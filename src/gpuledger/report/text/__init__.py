"""Views as text: terminal, Markdown, CSV and JUnit XML.

May import ``base`` and ``json``. ``html``, ``plots`` and ``trace`` may import it. Start reading at ``text``.
"""
