"""What a reader of a run sees first: its headline figures, the balance with the GPU, and what would lower the peak.

May import ``memory`` and ``step``. Begin with ``summary``.
"""
