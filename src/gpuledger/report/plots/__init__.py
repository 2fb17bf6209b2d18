"""Views as pictures (matplotlib).

May import ``base``. Begin with ``line_plot``.
"""
