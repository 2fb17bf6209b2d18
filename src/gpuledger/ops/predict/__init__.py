"""Predict the time and energy of operators that were not measured, and check the accuracy of predictions.

No other package of ``ops`` imports it. Start reading at ``predict``.
"""
