"""Memory recording: the allocations of the recorded steps, from the CUDA allocator's history or from a dispatch mode.

``session`` and ``flight`` may import it. Start reading at ``window``.
"""
