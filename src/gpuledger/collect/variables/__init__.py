"""Tensors that no module owns, and the names that the program's variables give to them.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``leaves``.
"""
