"""Capture the operators of a model or program, and rebuild their calls for measurement.

``predict``, ``exchange``, ``measure`` and ``totals`` may import it. Start reading at ``workload`` and ``captures``.
"""
