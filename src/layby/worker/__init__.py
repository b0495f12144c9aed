"""Takes tasks, runs their bodies in slots, lets them wait without one, reports how they end."""
