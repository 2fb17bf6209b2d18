"""What an operator has to do (FLOPs, bytes) and how hard that drives a GPU.

The lowest package of ``analyze``. Begin with ``formulas``.
"""
