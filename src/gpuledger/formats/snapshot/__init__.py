"""Parts of the reader of PyTorch's memory snapshots: pickles (never executed), columns, blocks and tables.

Needs no torch. Whatever may import ``formats`` may import it. Start reading at ``pickle_reader``.
"""
