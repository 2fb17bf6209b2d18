"""Capture the operators of a model or program, and rebuild their calls for measurement.

May import ``database``. ``predict``, ``exchange``, ``measure`` and ``totals`` may import it. Start reading at
``workload`` and ``captures``.
"""
