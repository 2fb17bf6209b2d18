"""One recorded process from its first step to its last.

The highest room of ``collect``. Begin with ``session``.
"""
