"""The measured costs of each store. Written by `bench/capacity.py --store STORE --write`."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.capacity import Cost, Costs, Event

POSTGRES = Costs(
    measured="2 cores of AMD EPYC, file system ext4, Python 3.11.7, PostgreSQL 15.18, with a load of 16, on 2026-11-18",
    one_writer=False,
    events={
        Event.STORED: Cost(7.77, 7.85, 552.0, 0.0031),
        Event.ENQUEUE: Cost(275.0, 200.0, 117.0, 1.0),
        Event.RUN: Cost(47.9, 19.8, 1590.0, 0.0127),
        Event.ROUND: Cost(658.0, 879.0, 0.0, 0.714),
        Event.LOOK: Cost(813.0, 1230.0, 7.22, 4.51),
        Event.BUSY: Cost(9090.0, 1790.0, 13400.0, 17.0),
        Event.RENEWAL: Cost(114.0, 111.0, 430.0, 0.21),
        Event.FAILURE: Cost(37.8, 170.0, 1010.0, 0.0822),
        Event.DELETED: Cost(6.82, 0.512, 116.0, 0.0036),
        Event.PROCESS: Cost(4380.0, 7410.0, 107.0, 22.6),
        Event.COMMAND: Cost(103.0, 617.0, 118.0, 0.135),
    },
    cycle_s=0.00767,
    look_s=0.00721,
    row_bytes=767.0,
    line_bytes=976.0,
    disk_copies=1.63,
    wal_copies=1.75,
    connections_idle=4.5,
    connections_busy=6,
    connections_command=2,
)
SQLITE = Costs(
    measured="2 cores of AMD EPYC, file system ext4, Python 3.11.7, SQLite 3.40.1, with a load of 3, on 2026-11-18",
    one_writer=True,
    events={
        Event.STORED: Cost(17.9, 17.0, 471.0, 0.0),
        Event.ENQUEUE: Cost(81.6, 245.0, 14100.0, 1.0),
        Event.RUN: Cost(21.5, 24.4, 1370.0, 0.0),
        Event.ROUND: Cost(277.0, 1220.0, 30200.0, 2.0),
        Event.LOOK: Cost(0.0, 947.0, 0.0, 0.0),
        Event.BUSY: Cost(0.0, 0.0, 7400.0, 0.0),
        Event.RENEWAL: Cost(0.0, 92.2, 2440.0, 0.0),
        Event.FAILURE: Cost(21.5, 220.0, 2620.0, 0.0),
        Event.DELETED: Cost(5.68, 5.68, 644.0, 0.001),
        Event.PROCESS: Cost(0.0, 7380.0, 4240.0, 0.1),
        Event.COMMAND: Cost(0.0, 583.0, 0.0, 0.0),
    },
    cycle_s=0.00483,
    look_s=0.00834,
    row_bytes=337.0,
    line_bytes=846.0,
    disk_copies=1.11,
    wal_copies=6.14,
    connections_idle=0.0,
    connections_busy=0,
    connections_command=0,
)
COSTS: Mapping[str, Costs] = {"postgres": POSTGRES, "sqlite": SQLITE}
