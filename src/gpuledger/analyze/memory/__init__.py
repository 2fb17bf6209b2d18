"""Memory in use at each instant, attributed to categories, modules and steps.

May import ``posting``. Start reading at ``instant`` and ``breakdown``.
"""
