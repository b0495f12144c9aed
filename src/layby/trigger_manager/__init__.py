"""Runs the triggers that need code: polls, and users' own. See docs/triggers.md."""
