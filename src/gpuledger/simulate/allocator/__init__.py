"""PyTorch's caching allocator for CUDA, simulated.

The lowest room of ``simulate``. Begin with ``allocator``.
"""
