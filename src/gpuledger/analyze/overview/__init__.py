"""Headline figures of a run: summary, GPU memory balance, and suggestions that would lower the peak.

May import ``memory`` and ``step``. Start reading at ``summary``.
"""
