"""GPU samples over time.

May import ``memory``. ``view``, ``ranks``, ``compare`` and ``keywords`` may import it. Start reading at ``series``.
"""
