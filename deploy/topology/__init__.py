"""Servers, workers, a balancer and PostgreSQL on one machine: `python -m deploy.topology FILE`."""
