"""What a step takes: time, energy, samples, and whose they are.

May import ``memory``. Begin with ``times`` and ``energy``.
"""
