"""Time and energy of a workload, summed over its operators.

``predict``, ``exchange`` and ``measure`` may import it. Start reading at ``sum``.
"""
