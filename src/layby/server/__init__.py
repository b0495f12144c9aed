"""The wire over sockets: requests in, answers and messages out. It contains no rules."""
