"""Operator lists and results that other tools wrote.

Begin with ``import_lists``.
"""
