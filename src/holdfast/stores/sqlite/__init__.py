"""The embedded store: one file, many processes of one host."""
