"""The journal: what a recorded process writes down while it runs, before tables are made of it.

Begin with ``journal``; ``columns`` has its tables, ``checks`` what their values must be.
"""
