"""Tables of a run: columns with type, unit, meaning and source.

Whatever may import ``model`` may import it. Start reading at ``tables``, which lists all of them.
"""
