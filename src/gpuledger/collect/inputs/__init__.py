"""The inputs of a program's outermost modules, what shows the batch in them, and which of them are caches.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``input_shapes``.
"""
