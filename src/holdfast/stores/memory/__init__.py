"""The store in plain dicts."""

from holdfast.stores.memory.store import MemoryStore as MemoryStore
