"""Fixtures shared by all tests; its place puts ``tests/`` on the import path, so ``from synthetic import make_run`` works."""
