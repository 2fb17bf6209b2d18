"""Views as JSON documents.

May import ``base``. ``html``, ``plots``, ``trace`` and ``text`` may import it. Start reading at ``document``.
"""
