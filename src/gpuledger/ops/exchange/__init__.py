"""Import operator lists and results written by other tools.

No other package of ``ops`` imports it. Start reading at ``import_lists``.
"""
