"""Commands that show, plot, query or export a run.

Every other package of ``cli`` may import it. Start reading at ``show``.
"""
