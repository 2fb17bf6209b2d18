"""Combine the runs of several hosts, in one process or on a Ray cluster.

Whatever may import ``services`` may import it. Start reading at ``merging``.
"""
