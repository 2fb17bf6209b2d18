"""Import operator lists and results written by other tools.

Start reading at ``import_lists``.
"""
