"""The command line: one module per command.

No other package imports it. Start reading at ``main`` and ``common``.
"""
