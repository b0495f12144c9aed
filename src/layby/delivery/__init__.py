"""Delivers messages from the outbox to receivers, over a socket or in this process."""
