"""Reading files that anybody may have written, and writing files whole or not at all.

The lowest room: it imports only errors. Begin with ``reading``.
"""
