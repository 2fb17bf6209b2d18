"""What commands and Python users both call: record, watch, load and compare runs.

Joins collecting, posting and reading; may import every room but ``cli``, ``live`` and ``integrations``. Begin with
``api``.
"""
