"""GPUs as this machine shows them: memory, processes, power, energy, clocks, through one protocol for every vendor.

May import ``model`` only; needs no torch. Begin with ``card`` (what a GPU can be asked) and ``opening`` (the vendors,
and the one place where GPUs are opened); to add a vendor copy ``nvidia``.
"""
