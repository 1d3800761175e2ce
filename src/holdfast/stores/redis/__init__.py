"""The store over Redis or Valkey; `store.py` has the verbs."""
