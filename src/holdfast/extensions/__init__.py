"""User code that Holdfast calls: middleware, resources, and hooks at the start and end of a worker."""
