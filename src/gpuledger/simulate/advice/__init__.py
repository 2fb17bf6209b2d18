"""Combinations of measures that make a training need less memory, each followed on the simulated GPU.

No other package of ``simulate`` imports it. Start reading at ``advise``.
"""
