"""Predict the time and energy of operators that were not measured, and check the accuracy of predictions.

Start reading at ``predict``.
"""
