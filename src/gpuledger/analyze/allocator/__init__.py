"""Simulation of PyTorch's caching allocator for CUDA.

Recorded requests are replayed in it under other settings, and the simulated GPU of ``simulate`` uses it. Every other
package of ``analyze`` but ``posting`` and ``operator_work`` may import it. Start reading at ``allocator``.
"""
