"""Read untrusted files safely, and write files atomically.

The lowest package: it imports only errors. Start reading at ``reading``.
"""
