"""A store behind a server: the verbs travel over HTTP."""
