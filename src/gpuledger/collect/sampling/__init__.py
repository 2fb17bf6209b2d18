"""Sample GPUs from a process or thread other than the program's own; measure energy; calibrate the CUDA context.

May not import the other packages of ``collect``. Every other package of ``collect`` but ``adapter`` and ``launch`` may
import it. Start reading at ``sampler``.
"""
