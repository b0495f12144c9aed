"""How code above the engine talks to it: one protocol, and a client that speaks HTTP."""
