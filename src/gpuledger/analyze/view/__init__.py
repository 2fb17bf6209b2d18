"""The view of a run, assembled once and rendered as text, JSON, HTML and notebook cells.

The highest package of ``analyze``. No other package of ``analyze`` imports it. Start reading at ``view``.
"""
