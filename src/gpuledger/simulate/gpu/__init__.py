"""A simulated GPU: fake tensors that say they are on it, and what its kernels need beside their results.

May import ``allocator`` and ``convolutions``. Begin with ``card`` and ``dispatch``.
"""
