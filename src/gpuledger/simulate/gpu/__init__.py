"""A simulated GPU: fake tensors that report it as their device, and the workspace memory of its kernels.

``advice``, ``estimate``, ``ranks`` and ``rest`` may import it. Start reading at ``device`` and ``dispatch``.
"""
