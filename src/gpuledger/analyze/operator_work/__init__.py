"""FLOPs and bytes of an operator, and the GPU power that they predict.

The lowest package of ``analyze``. Start reading at ``formulas``.
"""
