"""Help for tests of code that uses Holdfast. Nothing else in the package imports it."""

from holdfast.testing.clock import FakeClock, ShiftedClock, SteppedClock
from holdfast.testing.effects import effect
from holdfast.testing.tester import AppTester

__all__ = ["AppTester", "FakeClock", "ShiftedClock", "SteppedClock", "effect"]
