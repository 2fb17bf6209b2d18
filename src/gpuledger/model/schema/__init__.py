"""Tables of a run: columns with type, unit, meaning and source.

May import ``accounts``. Start reading at ``tables``, which lists all of them.
"""
