-- A view of the jobs in the database of a test.
DROP VIEW {name}
