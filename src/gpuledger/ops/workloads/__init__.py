"""Which operators a model or a program is made of, and calls made of them again.

May import ``database``. Begin with ``workload`` and ``captures``.
"""
