"""The sections of the HTML report: what each shows, its heading, its markup, its scripts and what its terms mean.

To add one, write a module with a ``Section`` and a script in ``report/assets/js`` that calls ``registerSection``, and
name it in ``registry``. Begin with ``section`` and, as an example, ``findings``.
"""
