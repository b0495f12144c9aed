"""The command line: reads, shows and asks; no rule lives here."""
