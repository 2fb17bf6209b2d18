"""Measuring operators on this machine's GPU or CPU, on one device or many.

May import ``database``, ``workloads`` and ``totals``. Begin with ``measure``.
"""
