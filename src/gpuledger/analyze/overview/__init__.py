"""Headline figures of a run: summary, GPU memory balance, and suggestions that would lower the peak.

``view``, ``ranks``, ``compare`` and ``keywords`` may import it. Start reading at ``summary``.
"""
