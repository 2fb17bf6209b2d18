"""Commands that record a program, monitor GPUs or check this machine.

``ops`` may import it. Start reading at ``run``.
"""
