"""Compare several runs, and check a run against limits.

``view`` and ``ranks`` may import it. Start reading at ``metrics`` and ``diff``.
"""
