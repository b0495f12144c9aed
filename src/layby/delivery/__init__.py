"""Which message goes to whom: from the outbox to receivers, over a socket or in this process."""
