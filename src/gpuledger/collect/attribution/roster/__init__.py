"""What is known of registered modules by their ids: their places and classes, and wrappers that leave their ids.

Whatever may import ``collect.attribution`` may import it. Start reading at ``places``.
"""
