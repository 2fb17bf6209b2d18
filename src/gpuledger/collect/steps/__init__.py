"""Steps of the program: what ends one, and how calls are counted if no optimizer steps.

``session``, ``flight``, ``memory`` and ``passes`` may import it. Start reading at ``step_counter``.
"""
