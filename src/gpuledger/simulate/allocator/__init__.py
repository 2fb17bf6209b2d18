"""Simulation of PyTorch's caching allocator for CUDA.

The lowest package of ``simulate``. Start reading at ``allocator``.
"""
