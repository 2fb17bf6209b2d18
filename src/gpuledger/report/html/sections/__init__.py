"""Sections of the HTML report. Each defines its data, heading, markup, scripts and glossary terms.

To add a section, write a module with a ``Section`` and a script in ``report/assets/js`` that calls ``registerSection``,
and add it to ``registry``. Whatever may import ``report.html`` may import it. Start reading at ``section``;
``findings`` is an example.
"""
