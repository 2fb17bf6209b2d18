"""The measured parts of the pages: each a function that makes Markdown of the files in bench/*/results.

A page marks where a part belongs with ``<!-- measured: NAME -->`` and ``<!-- /measured -->``. A function with
``@block("NAME")`` returns its lines. ``make pages`` writes all pages; a test compares them.
"""
