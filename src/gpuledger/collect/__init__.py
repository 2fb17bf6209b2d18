"""Recording inside the live process and on the GPU. No other package uses torch while a program runs."""
