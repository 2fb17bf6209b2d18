"""Start a program so that it is recorded: the child process, its settings, its rank and the run's manifest.

Every other package of ``collect`` but ``adapter`` and ``sampling`` may import it. Start reading at ``launch``.
``bootstrap`` is the code that Python loads in the child.
"""
