-- Codes that have refused a task, and what a run is pinned to. A task that was refused waits in an
-- index of its own, grouped by whom it is for, so that takes of others do not come across it.
ALTER TABLE promises ADD COLUMN task_refused TEXT;
ALTER TABLE promises ADD COLUMN task_pin TEXT;
ALTER TABLE promises ADD COLUMN task_awaited TEXT;
ALTER TABLE holders ADD COLUMN codes TEXT NOT NULL DEFAULT '[]';
ALTER TABLE holders ADD COLUMN retried_at BIGINT NOT NULL DEFAULT 0;

DROP INDEX promises_ready_nodes;
DROP INDEX promises_ready_names;
CREATE INDEX promises_ready_nodes
    ON promises (task_group, task_ready_at, id, task_name, timeout_at)
    WHERE task_state = 'pending' AND task_kind = 'node' AND task_refused IS NULL;
CREATE INDEX promises_ready_names
    ON promises (task_group, task_name, task_kind, task_ready_at, id, timeout_at)
    WHERE task_state = 'pending' AND task_group IS NOT NULL AND task_refused IS NULL;
CREATE INDEX promises_refused
    ON promises (task_group, task_refused, task_ready_at, id, timeout_at)
    WHERE task_state = 'pending' AND task_refused IS NOT NULL;

-- `blocked` is a ready task that waits for other code, as in core/waits.py.
DROP VIEW task_executions;
CREATE VIEW task_executions AS
SELECT
    id, root,
    task_name AS name,
    task_group AS task_group,
    CASE
        WHEN task_state = 'suspended' AND task_waits_left = 0 AND task_group IS NOT NULL
            AND COALESCE(task_waiting_on, '') NOT LIKE '{"kind":"backoff"%'
            THEN 'deferred'
        WHEN task_state = 'pending' AND task_refused IS NOT NULL AND task_waits_left = 0
            AND task_ready_at IS NOT NULL
            THEN 'blocked'
        ELSE task_state
    END AS state,
    CASE
        WHEN task_state = 'acquired' THEN COALESCE(task_sub_status, 'Active')
        WHEN task_state = 'suspended' AND task_waits_left = 0 AND task_group IS NOT NULL
            AND COALESCE(task_waiting_on, '') NOT LIKE '{"kind":"backoff"%'
            THEN 'Deferred'
    END AS sub_status,
    task_tries AS try_number,
    task_failures AS failures,
    task_crashes AS crashes,
    CASE WHEN task_state = 'acquired' THEN task_pid END AS pid,
    task_waiting_on AS waiting_on,
    task_progress AS progress,
    task_history AS history,
    task_error AS error,
    state AS promise_state,
    created_at, settled_at, timeout_at,
    task_refused AS refused,
    task_pin AS pin
FROM promises
WHERE task_state IS NOT NULL;
