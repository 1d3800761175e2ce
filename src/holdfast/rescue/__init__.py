"""Rescue for a jobs table that is not Holdfast's: find rows whose worker died, and bring them back.

A `Map` describes the table. `sweep` is for the start of an application, before it accepts work; `holdfast rescue` does
the same from outside. `core/verdict.py` decides about each row, as it does about the jobs of Holdfast.
"""

from holdfast.rescue.map import Map
from holdfast.rescue.report import Report
from holdfast.rescue.sweep import sweep

__all__ = ["Map", "Report", "sweep"]
