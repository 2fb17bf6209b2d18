"""Code of ``torch.compile``: modules and source lines of its allocations and kernels.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``compiled_graphs``.
"""
