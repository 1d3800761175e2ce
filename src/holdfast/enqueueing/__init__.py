"""Ways to store jobs: many at once, in a batch, by the name of a task, from calls that are stored already."""
