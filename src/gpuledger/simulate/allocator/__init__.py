"""PyTorch's caching allocator for CUDA, simulated.

The lowest package of ``simulate``. Begin with ``allocator``.
"""
