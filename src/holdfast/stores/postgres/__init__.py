"""PostgreSQL: many machines, one database. Needs the extra `postgres`: psycopg 3 and its pool."""
