"""Tensors that no module owns, and the names that the program's variables give to them.

May import ``attribution`` and ``adapter``. ``session``, ``flight``, ``memory`` and ``passes`` may import it. Start
reading at ``leaves``.
"""
