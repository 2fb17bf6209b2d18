"""The live view: a separate process that shows GPUs, and a run while it is being written.

``cli`` may import it. Start reading at ``view``.
"""
