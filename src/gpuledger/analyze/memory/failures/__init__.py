"""Out-of-memory errors: what failed and why, what would have helped, and a map of the GPU's segments.

Whatever may import ``analyze.memory`` may import it. Start reading at ``oom_cause``.
"""
