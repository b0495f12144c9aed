"""The wire over sockets: requests in, answers and messages out. No rule lives here."""
