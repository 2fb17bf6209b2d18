"""Time and energy of a workload, summed over its operators.

May import ``database`` and ``workloads``. ``predict``, ``exchange`` and ``measure`` may import it. Start reading at
``sum``.
"""
