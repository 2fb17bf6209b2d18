"""Views as HTML: the report, a diff and notebook cells.

No other package of ``report`` imports it. Start reading at ``report_page`` and ``payload``.
"""
