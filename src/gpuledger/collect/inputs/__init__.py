"""The inputs of a program's outermost modules, and what shows the batch in them.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``input_shapes``.
"""
