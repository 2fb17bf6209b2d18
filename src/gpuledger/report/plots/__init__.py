"""Views as matplotlib figures.

May import ``base``. Start reading at ``line_plot``.
"""
