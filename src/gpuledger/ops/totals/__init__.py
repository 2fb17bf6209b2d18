"""Time and energy of a workload, summed over its operators.

May import ``database`` and ``workloads``. Start reading at ``sum``.
"""
