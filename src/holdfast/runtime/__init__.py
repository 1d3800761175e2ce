"""Services, backoff, tracebacks, log fields and metrics: what several threads and processes share."""
