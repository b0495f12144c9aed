-- oldest code: 19
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

-- What tasks have been deferred for: one row for each wait, with what its manager last said of it.
DROP VIEW triggers;
CREATE VIEW triggers AS
SELECT
    task_resume/*json*/ ->> 'trigger' AS id,
    task.id AS task,
    task.root,
    task_resume/*json*/ ->> 'kind' AS trigger_class,
    COALESCE(task_resume/*json*/ ->> 'args', '{}') AS args,
    CASE
        WHEN task_resume/*json*/ ->> 'won' IS NOT NULL THEN 'ended'
        WHEN fires.task_state IS NULL THEN 'waiting'
        WHEN fires.task_state = 'acquired' THEN 'running'
        ELSE 'untaken'
    END AS state,
    task_resume/*json*/ ->> 'name' AS callback,
    CAST(task_resume/*json*/ ->> 'since' AS BIGINT) AS created_at,
    CAST(task_resume/*json*/ ->> 'until' AS BIGINT) AS deadline,
    fires.holder,
    CAST(fires.told/*json*/ ->> 'polls' AS BIGINT) AS polls,
    CAST(fires.told/*json*/ ->> 'last_poll_at' AS BIGINT) AS last_poll_at,
    CAST(fires.told/*json*/ ->> 'next_poll_at' AS BIGINT) AS next_poll_at,
    fires.told/*json*/ ->> 'last_error' AS last_error,
    task_resume/*json*/ ->> 'won' AS ended_by,
    task_resume/*json*/ ->> 'by' AS person,
    task_resume/*json*/ ->> 'reason' AS reason
FROM promises AS task
LEFT JOIN (
    SELECT id, task_state, task_waiting_on AS told,
        CASE WHEN task_state = 'acquired' THEN task_pid END AS holder
    FROM promises
    WHERE task_group = 'triggers'
) AS fires ON fires.id = task.task_resume/*json*/ ->> 'trigger'
WHERE task.task_resume IS NOT NULL;
CREATE INDEX promises_resumes ON promises (id) WHERE task_resume IS NOT NULL;

-- One row for each try of a task, as its workers have told it.
CREATE VIEW task_tries AS
SELECT
    promises.id AS task,
    promises.root,
    promises.task_name AS name,
    CAST(told.value ->> 'number' AS BIGINT) AS number,
    told.value ->> 'why' AS why,
    told.value ->> 'callback' AS callback,
    told.value ->> 'event' AS event,
    told.value ->> 'spans' AS spans,
    told.value ->> 'outcome' AS outcome,
    told.value ->> 'error' AS error,
    told.value ->> 'code' AS code
FROM (SELECT * FROM promises WHERE task_history LIKE '{"tries":[%') AS promises, /*tries*/;
