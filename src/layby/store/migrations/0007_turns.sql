-- A try is a claim that has begun a body; the version stays the fencing token. Of what was
-- claimed before, each claim is taken for one.
ALTER TABLE promises ADD COLUMN task_tries BIGINT;
ALTER TABLE promises ADD COLUMN task_ahead INTEGER;
UPDATE promises SET task_tries = task_version, task_ahead = 0 WHERE task_state IS NOT NULL;

DROP VIEW task_executions;
CREATE VIEW task_executions AS
SELECT
    id, root,
    task_name AS name,
    task_group AS task_group,
    CASE
        WHEN task_state = 'suspended' AND task_waits_left = 0 AND task_waiting_on IS NOT NULL
            THEN 'deferred'
        ELSE task_state
    END AS state,
    CASE
        WHEN task_state = 'acquired' THEN COALESCE(task_sub_status, 'Active')
        WHEN task_state = 'suspended' AND task_waits_left = 0 AND task_waiting_on IS NOT NULL
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
    created_at, settled_at, timeout_at
FROM promises
WHERE task_state IS NOT NULL;
