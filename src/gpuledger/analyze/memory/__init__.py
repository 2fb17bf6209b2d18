"""Whose bytes are alive when.

May import ``posting``. Begin with ``instant`` and ``breakdown``.
"""
