"""Takes tasks, runs their bodies under slots, lets them wait without one, reports how they end."""
