"""What users write, and the pure rules of a workflow: no I/O, no clock, no chance of its own."""
