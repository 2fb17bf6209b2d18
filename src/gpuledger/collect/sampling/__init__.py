"""Sample GPUs from outside the recorded program: the sampler beside a command, the energy meter, the calibration.

May not import the other packages of ``collect``. Start reading at ``sampler``.
"""
