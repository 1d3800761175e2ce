"""Work of a fleet beside its jobs: lost attempts, schedules, retention, the ends of batches."""
