"""Views as matplotlib figures.

No other package of ``report`` imports it. Start reading at ``line_plot``.
"""
