"""An independent model of the protocol, and the scripts that compare it with the server."""
