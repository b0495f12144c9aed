-- oldest code: 29
-- Older code stored what its workers told without looking into it: broken JSON, numbers beyond 64
-- bits, half of a surrogate pair. One such row ended these views for all tasks. Now it is shown as
-- 'unreadable', with its task and what is stored, and a number that is none of a BIGINT as NULL.
/*only postgres*/ CREATE FUNCTION readable_object(stored text) RETURNS json LANGUAGE plpgsql IMMUTABLE AS '
BEGIN /* jsonb looks into every text and number, json only at brackets */
    RETURN CASE jsonb_typeof(CAST(stored AS jsonb)) WHEN ''object'' THEN CAST(stored AS json) END; EXCEPTION WHEN others THEN RETURN NULL; END';

/*only postgres*/ CREATE FUNCTION readable_number(told text) RETURNS bigint LANGUAGE sql IMMUTABLE AS '
SELECT CASE WHEN told ~ ''^-?[0-9]{1,18}$'' THEN CAST(told AS bigint) END';

/*only postgres*/ CREATE OR REPLACE VIEW triggers AS
SELECT
    told ->> 'trigger' AS id,
    task.id AS task,
    task.root,
    told ->> 'kind' AS trigger_class,
    CASE WHEN told IS NULL THEN task.stored COLLATE "default" ELSE COALESCE(told ->> 'args', '{}') END AS args,
    CASE
        WHEN told IS NULL THEN 'unreadable'
        WHEN told ->> 'won' IS NOT NULL THEN 'ended'
        WHEN fires.task_state IS NULL THEN 'waiting'
        WHEN fires.task_state = 'acquired' THEN 'running'
        ELSE 'untaken'
    END AS state,
    told ->> 'name' AS callback,
    readable_number(told ->> 'since') AS created_at,
    readable_number(told ->> 'until') AS deadline,
    fires.holder,
    readable_number(fires.polled ->> 'polls') AS polls,
    readable_number(fires.polled ->> 'last_poll_at') AS last_poll_at,
    readable_number(fires.polled ->> 'next_poll_at') AS next_poll_at,
    fires.polled ->> 'last_error' AS last_error,
    told ->> 'won' AS ended_by,
    told ->> 'by' AS person,
    told ->> 'reason' AS reason
FROM (
    SELECT id, root, task_resume AS stored, read.told
    FROM promises,
        readable_object(replace(task_resume, chr(92) || 'u0000', chr(92) || 'ufffd')) AS read(told)
    WHERE task_resume IS NOT NULL
) AS task
LEFT JOIN (
    SELECT id, task_state, read.polled,
        CASE WHEN task_state = 'acquired' THEN task_pid END AS holder
    FROM promises,
        readable_object(replace(task_waiting_on, chr(92) || 'u0000', chr(92) || 'ufffd')) AS read(polled)
    WHERE task_group = 'triggers'
) AS fires ON fires.id = task.told ->> 'trigger';

/*only postgres*/ CREATE OR REPLACE VIEW task_tries AS
SELECT
    task.id AS task,
    task.root,
    task.task_name AS name,
    readable_number(told.value ->> 'number') AS number,
    told.value ->> 'why' AS why,
    told.value ->> 'callback' AS callback,
    told.value ->> 'event' AS event,
    told.value ->> 'spans' AS spans,
    CASE WHEN read.told IS NULL THEN 'unreadable' ELSE told.value ->> 'outcome' END AS outcome,
    CASE WHEN read.told IS NULL THEN task.task_history COLLATE "default" ELSE told.value ->> 'error' END AS error,
    told.value ->> 'code' AS code
FROM (SELECT * FROM promises WHERE task_history LIKE '{"tries":[%') AS task,
readable_object(replace(task.task_history, chr(92) || 'u0000', chr(92) || 'ufffd')) AS read(told),
json_array_elements(
    CASE json_typeof(read.told -> 'tries') WHEN 'array' THEN read.told -> 'tries' ELSE '[null]' END
) AS told(value);

/*only sqlite*/ DROP VIEW triggers;
/*only sqlite*/ CREATE VIEW triggers AS
SELECT
    told ->> 'trigger' AS id,
    task.id AS task,
    task.root,
    told ->> 'kind' AS trigger_class,
    CASE WHEN told IS NULL THEN task.stored ELSE COALESCE(told ->> 'args', '{}') END AS args,
    CASE
        WHEN told IS NULL THEN 'unreadable'
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
    SELECT id, root, task_resume AS stored,
        CASE WHEN json_valid(task_resume) THEN
            CASE json_type(task_resume) WHEN 'object' THEN task_resume END
        END AS told
    FROM promises
    WHERE task_resume IS NOT NULL
) AS task
LEFT JOIN (
    SELECT id, task_state,
        CASE WHEN json_valid(task_waiting_on) THEN
            CASE json_type(task_waiting_on) WHEN 'object' THEN task_waiting_on END
        END AS polled,
        CASE WHEN task_state = 'acquired' THEN task_pid END AS holder
    FROM promises
    WHERE task_group = 'triggers'
) AS fires ON fires.id = task.told ->> 'trigger';

/*only sqlite*/ DROP VIEW task_tries;
/*only sqlite*/ CREATE VIEW task_tries AS
SELECT
    told.task,
    told.root,
    told.name,
    CAST(told.try ->> 'number' AS BIGINT) AS number,
    told.try ->> 'why' AS why,
    told.try ->> 'callback' AS callback,
    told.try ->> 'event' AS event,
    told.try ->> 'spans' AS spans,
    CASE WHEN told.tries IS NULL THEN 'unreadable' ELSE told.try ->> 'outcome' END AS outcome,
    CASE WHEN told.tries IS NULL THEN told.stored ELSE told.try ->> 'error' END AS error,
    told.try ->> 'code' AS code
FROM (
    SELECT task.*, CASE one.type WHEN 'object' THEN one.value END AS try
    FROM (
        SELECT id AS task, root, task_name AS name, task_history AS stored,
            CASE WHEN json_valid(task_history) THEN task_history END AS tries
        FROM promises
        WHERE task_history LIKE '{"tries":[%'
    ) AS task, json_each(COALESCE(task.tries, '{"tries":[null]}'), '$.tries') AS one
) AS told;
