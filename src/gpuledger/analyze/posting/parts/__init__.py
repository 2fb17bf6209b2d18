"""Blocks with tensors of several modules: which bytes belong to which module.

Whatever may import ``analyze.posting`` may import it. Start reading at ``block_parts``.
"""
