-- A table of the jobs in the database of a test.
DROP TABLE {name}
