"""What is said of a run, assembled once: terminal, text, JSON, notebooks and the HTML report render it.

The highest package of ``analyze``. Begin with ``view``.
"""
