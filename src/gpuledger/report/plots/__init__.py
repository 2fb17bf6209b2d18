"""Views as matplotlib figures.

May import ``base``. No other package of ``report`` imports it. Start reading at ``line_plot``.
"""
