"""The data model of a run: tables, totals, journal and directory. No torch, no rendering.

Every other package but ``processes`` and ``files`` may import it. Start reading at ``run`` and ``manifest``.
"""
