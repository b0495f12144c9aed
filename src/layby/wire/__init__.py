"""Bytes to commands and replies to bytes. No rule lives here, and no I/O."""
