"""Time, energy and samples of a step, attributed to categories and modules.

May import ``memory``. Start reading at ``times`` and ``energy``.
"""
