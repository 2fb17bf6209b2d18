"""Temporary memory of CUDA operators: what a kernel, cuBLAS or cuDNN allocates beside the results.

May import ``convolutions`` and ``traits``. ``gpu`` and what imports it may import this. Start
reading at ``spaces``, and find an operator's rule in ``rules``.
"""
