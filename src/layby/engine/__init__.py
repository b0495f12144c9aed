"""Batches, timers and the outbox around the pure core: one writer, one transaction at a time."""
