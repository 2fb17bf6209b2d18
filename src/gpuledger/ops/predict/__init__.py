"""Predicting operators that were never measured, and how accurate that is.

Begin with ``predict``.
"""
