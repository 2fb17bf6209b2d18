"""The memory window: allocations of some steps, from the CUDA allocator's history or from the dispatcher.

May import ``adapter``, ``attribution`` and ``launch``. Begin with ``window``.
"""
