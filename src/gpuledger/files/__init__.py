"""Read untrusted files safely, and write files atomically.

The lowest package: it imports only errors. Every other package may import it. Start reading at ``reading``.
"""
