"""Decide the conditions of a program that depend on values which an estimate does not compute.

``advice``, ``estimate``, ``ranks``, ``rest``, ``gpu`` and ``temporaries`` may import it. Start reading at
``decisions``.
"""
