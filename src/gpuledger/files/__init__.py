"""Reading files that anybody may have written, and writing files whole or not at all.

The lowest package: it imports only errors. Begin with ``reading``.
"""
