"""Readings of a GPU over time.

May import ``memory``. Begin with ``series``.
"""
