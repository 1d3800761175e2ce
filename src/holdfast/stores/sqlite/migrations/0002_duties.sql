-- The right to a fleet-wide chore. A row is never deleted: its term must not fall.

CREATE TABLE holdfast_duty (
    name    TEXT    NOT NULL PRIMARY KEY,
    holder  TEXT,                                     -- NULL: resigned
    term    INTEGER NOT NULL,
    until   REAL    NOT NULL,                         -- lease clock of boot_id
    boot_id TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
