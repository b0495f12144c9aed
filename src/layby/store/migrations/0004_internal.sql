-- Strict servers let nobody wait for an internal promise, and nothing enforces its deadline:
-- past it, it must not stand at the front of an index for ever.
ALTER TABLE promises ADD COLUMN internal INTEGER NOT NULL DEFAULT 0;

DROP INDEX promises_timeout;
CREATE INDEX promises_timeout ON promises (timeout_at)
    WHERE settled_at IS NULL AND internal = 0 AND timeout_at < 9007199254740991;
DROP INDEX promises_outside;
CREATE INDEX promises_outside ON promises (created_at, id)
    WHERE settled_at IS NULL AND task_target IS NULL AND timer = 0 AND internal = 0;
