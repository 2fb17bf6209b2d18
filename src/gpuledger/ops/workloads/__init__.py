"""Capture the operators of a model or program, and rebuild their calls for measurement.

May import ``database``. Start reading at ``workload`` and ``captures``.
"""
