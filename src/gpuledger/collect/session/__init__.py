"""Recording of one process, from its first step to its last.

The highest package of ``collect``. Start reading at ``session``.
"""
