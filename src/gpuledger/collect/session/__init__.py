"""One recorded process from its first step to its last.

The highest package of ``collect``. Begin with ``session``.
"""
