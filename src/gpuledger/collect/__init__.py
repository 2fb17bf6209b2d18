"""The live process and the card: the only place that touches torch while a program runs."""
