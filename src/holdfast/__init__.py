"""Background jobs that survive kill -9."""

__version__ = "0.1.0"
