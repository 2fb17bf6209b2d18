"""Views as JSON documents.

``html``, ``plots``, ``trace`` and ``text`` may import it. Start reading at ``document``.
"""
