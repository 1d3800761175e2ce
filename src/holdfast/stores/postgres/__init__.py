"""PostgreSQL: many machines, one database. Needs `pip install holdfast[postgres]`."""
