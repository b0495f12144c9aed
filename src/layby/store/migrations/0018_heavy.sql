-- oldest code: 17
-- Promises whose param and value are large, and how large: SQLite before 3.43 reads a text to
-- measure it. PostgreSQL keeps sizes itself.
/*only sqlite*/ CREATE INDEX promises_heavy
    ON promises (id, length(CAST(param AS BLOB)) + length(CAST(value AS BLOB)))
    WHERE length(CAST(param AS BLOB)) + length(CAST(value AS BLOB)) > 16384;

-- Internal promises that are past their deadline read as timed out, and searches must find them.
CREATE INDEX promises_internal ON promises (id)
    WHERE settled_at IS NULL AND internal = 1 AND timeout_at < 9007199254740991;
