"""Commands that record a program, watch GPUs, or look at this machine."""
