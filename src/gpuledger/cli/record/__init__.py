"""Commands that record a program, monitor GPUs or check this machine."""
