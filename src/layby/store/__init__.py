"""Rows to SQL and back: load, save, due, ready. No rule lives here."""
