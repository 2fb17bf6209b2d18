"""Views as JSON documents.

May import ``base``. Begin with ``document``.
"""
