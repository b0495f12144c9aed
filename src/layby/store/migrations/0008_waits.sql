-- A task that backs off says so itself. Until now that had to be guessed from its failures, which
-- it keeps when it waits for something else later.
UPDATE promises SET task_waiting_on =
    '{"kind":"backoff","sentence":"backs off after failure ' || task_failures
    || '","since":' || COALESCE(task_waiting_since, created_at)
    || ',"deadline":' || (
        SELECT timer.timeout_at FROM promises AS timer
        WHERE timer.id = promises.id || '.backoff.' || promises.task_version
    ) || '}'
WHERE task_state = 'suspended' AND task_waits_left = 0 AND EXISTS (
    SELECT 1 FROM waits
    WHERE waits.awaiter = promises.id
        AND waits.awaited = promises.id || '.backoff.' || promises.task_version
);

-- `deferred` is a task of ours whose body waits in the store: Running to its user. A back-off is
-- none: no body has begun to wait. The rule is core/waits.py's; a test compares the two.
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
    created_at, settled_at, timeout_at
FROM promises
WHERE task_state IS NOT NULL;
