"""Flight recorder: counters of every step, censuses of what grows, and the GPU at an out-of-memory error.

``session`` may import it. Start reading at ``flight_recorder``; ``last_events`` says what is kept beside which
measurement.
"""
