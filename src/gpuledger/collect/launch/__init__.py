"""Starting a program so that it is recorded: the child process, its settings, its rank, and the run's manifest.

May not import the other packages of ``collect``. Begin with ``launch``;
``bootstrap`` is what Python loads in the child.
"""
