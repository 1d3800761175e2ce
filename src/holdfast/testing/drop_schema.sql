-- The schema that a test made for itself, with all that is in it.
DROP SCHEMA IF EXISTS {schema} CASCADE
