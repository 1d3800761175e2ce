"""The command line: parse, call, show. One module per noun; `main.py` has the entry point."""
