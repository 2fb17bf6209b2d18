"""The journal: the raw events that a recorded process writes while it runs. The run's tables are built from it later.

Whatever may import ``model`` may import it. Start reading at ``journal``. ``columns`` defines its tables and ``checks``
validates their values.
"""
