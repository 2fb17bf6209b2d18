"""What a program does after the simulated steps: evaluations, later epochs and phases, with shortened loops."""
