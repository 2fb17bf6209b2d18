"""Temporary memory of CUDA operators: what a kernel, cuBLAS or cuDNN allocates beside the results.

``advice``, ``estimate``, ``ranks``, ``rest`` and ``gpu`` may import it. Start reading at ``spaces``, and find an
operator's rule in ``rules``.
"""
