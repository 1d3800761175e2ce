"""Code of the user's that Holdfast calls: middleware, hooks, resources."""
