"""Recording of one process, from its first step to its last.

The highest package of ``collect``. No other package of ``collect`` imports it. Start reading at ``session``.
"""
