"""Source lines of allocations: the line of each block, the flame graph of call paths, and the main loop.

Whatever may import ``analyze.memory`` may import it. Start reading at ``source_lines``.
"""
