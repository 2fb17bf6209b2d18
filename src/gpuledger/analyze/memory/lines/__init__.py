"""Source lines of allocations: the line of each block, the flame graph of call paths, and the main loop.

May import ``live`` and ``breakdown``. Start reading at ``source_lines``.
"""
