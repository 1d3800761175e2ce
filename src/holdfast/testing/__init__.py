"""Help for tests of code that uses Holdfast. Nothing else in the package imports it."""

from holdfast.testing.clock import FakeClock, ShiftedClock

__all__ = ["FakeClock", "ShiftedClock"]
