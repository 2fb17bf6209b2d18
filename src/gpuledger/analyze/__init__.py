"""Pure functions from a run to immutable results. No torch, no GPU, no printing.

Every other package but ``collect``, ``cards``, ``model``, ``processes`` and ``files`` may import it. Start reading at
``view`` and ``memory``.
"""
