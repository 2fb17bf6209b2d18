"""Code of ``torch.compile``: modules and source lines of its allocations and kernels.

May import ``attribution`` and ``adapter``. Start reading at ``compiled_graphs``.
"""
