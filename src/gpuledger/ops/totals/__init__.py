"""A workload's time and energy, added up from its operators.

May import ``database`` and ``workloads``. Begin with ``sum``.
"""
