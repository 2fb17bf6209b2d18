"""Render results as text, JSON, HTML, plots and traces. Renderers compute nothing.

``cli``, ``live``, ``integrations``, ``services`` and ``ops`` may import it. Start reading at ``text`` and ``html``.
"""
