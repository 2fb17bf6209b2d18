"""Estimates of memory on a simulated GPU: of a program, of a step, of the largest batch that fits.

The highest package of ``simulate``. Begin with ``run`` and ``api``.
"""
