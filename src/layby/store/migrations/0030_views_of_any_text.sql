-- oldest code: 29
-- PostgreSQL reads no JSON in which a text has a NUL, and one such context, argument or error ended
-- the views of all tasks. In these views it is shown as the character that stands for what cannot be.
/*only postgres*/ CREATE OR REPLACE VIEW triggers AS
SELECT
    told ->> 'trigger' AS id,
    task.id AS task,
    task.root,
    told ->> 'kind' AS trigger_class,
    COALESCE(told ->> 'args', '{}') AS args,
    CASE
        WHEN told ->> 'won' IS NOT NULL THEN 'ended'
        WHEN fires.task_state IS NULL THEN 'waiting'
        WHEN fires.task_state = 'acquired' THEN 'running'
        ELSE 'untaken'
    END AS state,
    told ->> 'name' AS callback,
    CAST(told ->> 'since' AS BIGINT) AS created_at,
    CAST(told ->> 'until' AS BIGINT) AS deadline,
    fires.holder,
    CAST(fires.polled ->> 'polls' AS BIGINT) AS polls,
    CAST(fires.polled ->> 'last_poll_at' AS BIGINT) AS last_poll_at,
    CAST(fires.polled ->> 'next_poll_at' AS BIGINT) AS next_poll_at,
    fires.polled ->> 'last_error' AS last_error,
    told ->> 'won' AS ended_by,
    told ->> 'by' AS person,
    told ->> 'reason' AS reason
FROM (
    SELECT id, root, CAST(replace(task_resume, chr(92) || 'u0000', chr(92) || 'ufffd') AS json) AS told
    FROM promises
    WHERE task_resume IS NOT NULL
) AS task
LEFT JOIN (
    SELECT id, task_state,
        CAST(replace(task_waiting_on, chr(92) || 'u0000', chr(92) || 'ufffd') AS json) AS polled,
        CASE WHEN task_state = 'acquired' THEN task_pid END AS holder
    FROM promises
    WHERE task_group = 'triggers'
) AS fires ON fires.id = task.told ->> 'trigger';

/*only postgres*/ CREATE OR REPLACE VIEW task_tries AS
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
FROM (SELECT * FROM promises WHERE task_history LIKE '{"tries":[%') AS promises,
LATERAL json_array_elements(
    CAST(replace(promises.task_history, chr(92) || 'u0000', chr(92) || 'ufffd') AS json) -> 'tries'
) AS told(value);
