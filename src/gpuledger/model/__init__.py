"""The data model of a run: its directory, manifests, tables and journal. No torch, no rendering.

Every other package but ``processes`` and ``files`` may import it. Start reading at ``run`` and ``manifest``.
"""
