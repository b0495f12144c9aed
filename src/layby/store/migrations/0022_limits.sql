-- oldest code: 22
-- Limits: how many tasks run at once on all machines, and how many begin in a time. A task without
-- a permit is behind the gate of a limit, and has no `task_ready_at`: takes do not come across it.
ALTER TABLE promises ADD COLUMN task_limits TEXT;
ALTER TABLE promises ADD COLUMN task_gate TEXT;
ALTER TABLE promises ADD COLUMN task_gate_at BIGINT;
ALTER TABLE promises ADD COLUMN task_permits TEXT;

CREATE INDEX promises_lanes ON promises (task_gate, task_name, task_gate_at, id)
    WHERE task_gate IS NOT NULL;
CREATE INDEX promises_permits ON promises (id, task_permits) WHERE task_permits IS NOT NULL;

CREATE TABLE limits (
    name         TEXT PRIMARY KEY,
    defined      INTEGER NOT NULL,
    pattern      INTEGER NOT NULL,
    concurrency  BIGINT,
    rate         TEXT,
    burst        BIGINT NOT NULL,
    count_parked INTEGER NOT NULL,
    held         BIGINT NOT NULL,
    paid_us      BIGINT NOT NULL,
    opened       TEXT,
    next_at      BIGINT,
    "cursor"     TEXT
) /*keyed*/;
CREATE INDEX limits_patterns ON limits (name) WHERE pattern = 1;
CREATE INDEX limits_next ON limits (next_at) WHERE next_at IS NOT NULL;
