"""How everything above the engine talks to it: one Protocol, in process or over HTTP."""
