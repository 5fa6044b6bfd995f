"""The coalesce lane: bursts become micro-batches, idle traffic waits zero."""
