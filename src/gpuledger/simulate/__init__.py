"""A simulated GPU: how much memory a program would take on a GPU that is not in this machine.

May import ``collect`` and ``analyze``; torch. Begin with ``estimate``.
"""
