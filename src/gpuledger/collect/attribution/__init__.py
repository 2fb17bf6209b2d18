"""Track the current step, phase, module and scope while recording, and the owner of each tensor.

Every other package of ``collect`` but ``adapter``, ``launch`` and ``sampling`` may import it. Start reading at
``modules`` and ``tags``.
"""
