"""Memory estimates on a simulated GPU: of a program, of a step, and of the largest batch that fits.

The highest package of ``simulate``. ``advice`` may import it. Start reading at ``run`` and ``api``.
"""
