"""How everything above an engine talks to it: one Protocol, and a client that speaks HTTP."""
