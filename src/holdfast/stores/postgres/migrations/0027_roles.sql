-- works with: 9
-- How often a process has looked for the dead, and for what is due, on behalf of the fleet. A process that stands by sees
-- by them that another one looks.

CREATE SEQUENCE {schema}.dead_looks;
CREATE SEQUENCE {schema}.due_looks;
GRANT SELECT, USAGE ON SEQUENCE {schema}.dead_looks, {schema}.due_looks TO PUBLIC;
