"""What is measured after the memory window: unprofiled steps, their energy, and the time of kernels.

May import ``adapter``, ``attribution`` and ``launch``. Begin with ``later_passes``.
"""
