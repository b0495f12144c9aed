"""What can go wrong outside the rules; refusals by the rules are replies, not exceptions."""


class LaybyError(Exception):
    """Anything layby raises on purpose. The message says what, which id and what to do."""


class UsageError(LaybyError):
    """The caller asked for something that cannot be: change the call."""


class WireError(LaybyError):
    """The peer sent something that is not the protocol."""


class StoreError(LaybyError):
    """The store refused or failed; nothing of the batch was written."""


class StoreUnavailable(StoreError):
    """The store cannot serve now (full disk, locked, read-only); the same call may work later."""


class StoreBusy(StoreUnavailable):
    """Another program holds a lock on the file, for longer than we wait."""


class StoreOwned(StoreError):
    """Another process owns this file."""


class StoreUnreadable(StoreError):
    """The file is not one this version of layby can read."""


class EngineStopped(LaybyError):
    """The engine has been stopped; nothing was written for this command."""
