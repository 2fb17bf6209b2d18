"""Views as text: terminal, Markdown, CSV and JUnit XML.

``html``, ``plots`` and ``trace`` may import it. Start reading at ``first_screen`` and ``run_summary``.
"""
