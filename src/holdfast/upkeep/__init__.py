"""Background services of a fleet: recovery, schedules, retention, the ends of batches."""
