"""Pure: no I/O, no clock, no randomness. All decisions about jobs are made here."""
