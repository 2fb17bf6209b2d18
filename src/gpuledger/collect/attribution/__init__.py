"""Who is at work while something is recorded: step, phase, module, scope, and whose tensor it is.

May import ``adapter``. Begin with ``modules`` and ``tags``.
"""
