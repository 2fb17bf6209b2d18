"""What a program does after the simulated steps: evaluations, later epochs and stages, with shorter loops.

``advice`` and ``estimate`` may import it. Start reading at ``rest``.
"""
