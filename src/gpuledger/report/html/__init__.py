"""Views as HTML: the report, a diff and notebook cells.

May import ``base``. No other package of ``report`` imports it. Start reading at ``html`` and ``payload``.
"""
