"""Build a run's tables from its journal: allocator replay, owners, categories, and time and energy of kernels.

Start reading at ``posting``.
"""
