"""Decide the conditions of a program that depend on values which an estimate does not compute."""

from __future__ import annotations
