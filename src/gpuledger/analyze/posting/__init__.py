"""Build a run's tables from its journal: allocator replay, owners, categories, and time and energy of kernels.

Every other package of ``analyze`` but ``operator_work`` may import it. Start reading at ``posting``.
"""
