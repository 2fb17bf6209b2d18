"""Views as HTML: the report, a diff and notebook cells.

May import ``base``. Start reading at ``html`` and ``payload``.
"""
