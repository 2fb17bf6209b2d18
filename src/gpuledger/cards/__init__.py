"""GPUs as this machine shows them, through NVML or the tool nvidia-smi: memory, processes, power, energy, clocks.

May import ``model`` and ``files``; needs no torch. Begin with ``sensors``.
"""
