"""Track the current step, phase, module and scope while recording, and the owner of each tensor.

May import ``adapter``. Start reading at ``modules`` and ``tags``.
"""
