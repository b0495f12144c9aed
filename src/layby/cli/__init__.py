"""The command line: it reads, prints and sends requests, and contains no rules."""
