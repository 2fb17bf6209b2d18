"""Time, energy and samples of a step, attributed to categories and modules.

``view``, ``ranks``, ``compare``, ``keywords``, ``overview`` and ``samples`` may import it. Start reading at ``times``
and ``energy``.
"""
