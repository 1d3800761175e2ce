"""Pure: no I/O, no clock, no randomness. What becomes of a job is decided here and nowhere else."""
