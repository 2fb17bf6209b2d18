"""Parts of the reader of PyTorch's memory snapshots: pickles without running them, columns, blocks and tables.

May import ``formats`` and ``model``; needs no torch. Begin with ``pickle_reader``.
"""
