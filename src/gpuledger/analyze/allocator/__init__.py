"""Simulation of PyTorch's caching allocator for CUDA.

Recorded requests are replayed in it under other settings, and the simulated GPU of ``simulate`` uses it. Start reading
at ``allocator``.
"""
