"""FLOPs and bytes of an operator, and the GPU power that they predict.

The lowest package of ``analyze``. Every other package of ``analyze`` may import it. Start reading at ``formulas``.
"""
