"""Memory in use at each instant, attributed to categories, modules and steps.

Every other package of ``analyze`` but ``allocator``, ``posting`` and ``operator_work`` may import it. Start reading at
``instant`` and ``breakdown``.
"""
