"""Estimate the memory of a program on a simulated GPU, without that GPU in this machine.

May import ``collect`` and ``analyze``; needs torch. ``cli``, ``live``, ``integrations``, ``services`` and ``ops`` may
import it. Start reading at ``estimate``.
"""
