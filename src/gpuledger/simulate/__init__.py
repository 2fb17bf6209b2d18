"""Estimate the memory of a program on a simulated GPU, without that GPU in this machine.

Needs torch. ``cli``, ``live``, ``integrations``, ``services`` and ``ops`` may import it. Start reading at ``estimate``.
"""
