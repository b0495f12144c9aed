-- oldest code: 24
-- Promises whose time is over in the same millisecond settle in the order of their ids, on every
-- database, and are found in that order without sorting.
DROP INDEX promises_timeout;
CREATE INDEX promises_timeout ON promises (timeout_at, id)
    WHERE settled_at IS NULL AND internal = 0 AND timeout_at < 9007199254740991;
