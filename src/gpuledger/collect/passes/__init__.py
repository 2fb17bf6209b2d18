"""Measurements that follow the memory recording: unprofiled steps, their energy, and the time of kernels.

``session`` and ``flight`` may import it. Start reading at ``later_passes``.
"""
