"""Compare several runs, and check a run against limits.

Start reading at ``metrics`` and ``diff``.
"""
