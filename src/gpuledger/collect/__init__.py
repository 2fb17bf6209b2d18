"""The live process and the GPU: the only place that touches torch while a program runs."""
