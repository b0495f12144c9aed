-- How a deferred task goes on (`core.resumption`): kept beside what it waits for, which is forgotten
-- with every move of the task.
ALTER TABLE promises ADD COLUMN task_resume TEXT;

DROP VIEW task_executions;
CREATE VIEW task_executions AS
SELECT
    id, root,
    task_name AS name,
    task_group AS task_group,
    CASE
        WHEN task_state = 'suspended' AND task_waiting_on LIKE '{"kind":"trigger"%'
            THEN 'deferred'
        WHEN task_state = 'pending' AND task_refused IS NOT NULL AND task_waits_left = 0
            AND task_ready_at IS NOT NULL
            THEN 'blocked'
        ELSE task_state
    END AS state,
    CASE
        WHEN task_state = 'acquired' THEN COALESCE(task_sub_status, 'Active')
        WHEN task_state = 'suspended' AND task_waiting_on LIKE '{"kind":"trigger"%'
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
