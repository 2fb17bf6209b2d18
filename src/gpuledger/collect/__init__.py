"""Recording inside the live process and on the GPU. No other package uses torch while a program runs.

``cli``, ``live``, ``integrations``, ``services``, ``ops``, ``simulate`` and ``export`` may import it. Start reading at
``session`` and ``memory``.
"""
