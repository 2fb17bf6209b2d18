"""Several runs side by side, and a run against a budget.

The highest package of ``analyze``. Begin with ``metrics`` and ``diff``.
"""
