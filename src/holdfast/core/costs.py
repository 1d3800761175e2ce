"""What each store was measured to cost. Written by `bench/capacity.py --store STORE --write`."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.capacity import Cost, Costs, Event

POSTGRES = Costs(
    measured="2 cores of AMD EPYC, file system ext4, Python 3.11.7, PostgreSQL 15.18, with a load of 23, on 2026-11-18",
    one_writer=False,
    events={
        Event.STORED: Cost(6.75, 6.94, 552.0, 0.0),
        Event.ENQUEUE: Cost(215.0, 165.0, 117.0, 1.01),
        Event.RUN: Cost(43.2, 16.0, 1590.0, 0.0135),
        Event.ROUND: Cost(2040.0, 2220.0, 216.0, 4.46),
        Event.LOOK: Cost(775.0, 1300.0, 0.0, 3.72),
        Event.BUSY: Cost(5690.0, 1890.0, 803.0, 13.9),
        Event.RENEWAL: Cost(115.0, 113.0, 444.0, 0.196),
        Event.FAILURE: Cost(83.5, 238.0, 978.0, 0.117),
        Event.DELETED: Cost(7.08, 0.549, 116.0, 0.0036),
        Event.PROCESS: Cost(4630.0, 6690.0, 2300.0, 26.4),
        Event.COMMAND: Cost(0.0, 272.0, 0.0, 0.0),
    },
    cycle_s=0.049,
    look_s=0.0546,
    row_bytes=777.0,
    line_bytes=1010.0,
    disk_copies=1.63,
    wal_copies=1.75,
    connections_idle=4.0,
    connections_busy=6,
    connections_command=2,
)
SQLITE = Costs(
    measured="2 cores of AMD EPYC, file system ext4, Python 3.11.7, SQLite 3.40.1, with a load of 10, on 2026-11-18",
    one_writer=True,
    events={
        Event.STORED: Cost(17.3, 17.0, 471.0, 0.0),
        Event.ENQUEUE: Cost(116.0, 218.0, 14100.0, 1.0),
        Event.RUN: Cost(22.6, 26.6, 1350.0, 0.0),
        Event.ROUND: Cost(327.0, 1150.0, 35200.0, 2.0),
        Event.LOOK: Cost(0.0, 977.0, 217.0, 0.0),
        Event.BUSY: Cost(0.0, 471.0, 5750.0, 0.0),
        Event.RENEWAL: Cost(0.0, 4.51, 187.0, 0.0),
        Event.FAILURE: Cost(22.6, 191.0, 4000.0, 0.0),
        Event.DELETED: Cost(6.29, 6.29, 645.0, 0.001),
        Event.PROCESS: Cost(0.0, 7540.0, 4050.0, 0.1),
        Event.COMMAND: Cost(0.0, 216.0, 67.4, 0.0),
    },
    cycle_s=0.0225,
    look_s=0.00969,
    row_bytes=337.0,
    line_bytes=849.0,
    disk_copies=1.11,
    wal_copies=6.33,
    connections_idle=0.0,
    connections_busy=0,
    connections_command=0,
)
COSTS: Mapping[str, Costs] = {"postgres": POSTGRES, "sqlite": SQLITE}
