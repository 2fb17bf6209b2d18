"""From a journal to a run's tables: replay of the allocator, owners, categories, the time and energy of kernels.

Begin with ``posting``.
"""
