"""GPU samples over time.

``view``, ``ranks``, ``compare`` and ``keywords`` may import it. Start reading at ``series``.
"""
