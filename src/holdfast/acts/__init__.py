"""Acts of people: on one job and on many, on queues, on workers, on the store."""
