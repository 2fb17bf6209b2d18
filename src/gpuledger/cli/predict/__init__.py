"""Commands that estimate memory on a given GPU.

``ops`` may import it. Start reading at ``estimate``.
"""
