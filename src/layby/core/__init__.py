"""The rules: pure, without I/O, clock, randomness or logging. Start reading at `step.py`."""
