-- One row per promise, with its task's columns beside it. Times are integer milliseconds;
-- 9007199254740991 means never, and such deadlines stay out of the timer indexes.
-- Columns from `state` (and `task_state`) on change; those before are written once.
CREATE TABLE promises (
    id              TEXT PRIMARY KEY,
    root            TEXT NOT NULL,
    param           TEXT NOT NULL,
    tags            TEXT NOT NULL,
    timeout_at      BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    timer           INTEGER NOT NULL,
    branch          TEXT,
    placeholder     INTEGER NOT NULL,
    state           TEXT NOT NULL,
    value           TEXT NOT NULL,
    settled_at      BIGINT,
    tail_at         BIGINT,
    task_target     TEXT,
    task_group      TEXT,
    task_name       TEXT,
    task_kind       TEXT,
    task_state      TEXT,
    task_version    BIGINT,
    task_pid        TEXT,
    task_holder     TEXT,
    task_ttl        BIGINT,
    task_wake_at    BIGINT,
    task_ready_at   BIGINT,
    task_resumes    TEXT,
    task_waits_left BIGINT,
    task_failures   BIGINT,
    task_crashes    BIGINT,
    task_error      TEXT,
    task_sub_status TEXT,
    task_waiting_on TEXT,
    task_progress   TEXT,
    task_history    TEXT
);

-- Timers: one look at the front of each index tells the earliest deadline. Their conditions
-- avoid the state columns, so that the planner cannot prefer the wider search indexes.
CREATE INDEX promises_timeout ON promises (timeout_at)
    WHERE settled_at IS NULL AND timeout_at < 9007199254740991;
CREATE INDEX promises_wake ON promises (task_wake_at)
    WHERE task_wake_at < 9007199254740991;
CREATE INDEX promises_tail ON promises (tail_at) WHERE tail_at IS NOT NULL;

-- The queue that takes read: the pending row is the queue entry. Its front, and each name apart.
CREATE INDEX promises_ready_nodes
    ON promises (task_group, task_ready_at, id, task_name, timeout_at)
    WHERE task_state = 'pending' AND task_kind = 'node';
CREATE INDEX promises_ready_roots
    ON promises (task_group, task_ready_at, id, task_name, timeout_at)
    WHERE task_state = 'pending' AND task_kind = 'root';
CREATE INDEX promises_ready_names
    ON promises (task_group, task_name, task_kind, task_ready_at, id, timeout_at)
    WHERE task_state = 'pending' AND task_group IS NOT NULL;
CREATE INDEX promises_held ON promises (task_holder, id) WHERE task_holder IS NOT NULL;
CREATE INDEX promises_leased ON promises (task_pid, id)
    WHERE task_ttl IS NOT NULL AND task_holder IS NULL;

-- Searches: every filter has an index that ends in id, so that pages are keyset ranges.
CREATE INDEX promises_state ON promises (state, id);
CREATE INDEX promises_root ON promises (root, id) WHERE root <> id;
CREATE INDEX promises_branch ON promises (branch, id) WHERE branch IS NOT NULL;
CREATE INDEX promises_target ON promises (task_target, id) WHERE task_target IS NOT NULL;
CREATE INDEX promises_group ON promises (task_group, id) WHERE task_group IS NOT NULL;
CREATE INDEX promises_runs ON promises (id) WHERE task_kind = 'root';
CREATE INDEX promises_name ON promises (task_name, id) WHERE task_name IS NOT NULL;
CREATE INDEX promises_task_state ON promises (task_state, id) WHERE task_state IS NOT NULL;

-- Tags that have no column of their own.
CREATE TABLE tags (
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    id    TEXT NOT NULL,
    PRIMARY KEY (key, value, id)
) /*keyed*/;

CREATE TABLE waits (
    awaited TEXT NOT NULL,
    awaiter TEXT NOT NULL,
    mode    TEXT NOT NULL,
    PRIMARY KEY (awaited, awaiter)
) /*keyed*/;
CREATE INDEX waits_awaiter ON waits (awaiter, awaited);

CREATE TABLE listeners (
    awaited TEXT NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (awaited, address)
) /*keyed*/;

-- The outbox: written with the change that caused it, removed once delivered.
CREATE TABLE messages (
    id      TEXT NOT NULL,
    kind    TEXT NOT NULL,
    address TEXT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (id, kind, address)
) /*keyed*/;
CREATE INDEX messages_address ON messages (address);

CREATE TABLE holders (
    pid         TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    "group"     TEXT NOT NULL,
    embedded    INTEGER NOT NULL,
    ttl         BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    standing    TEXT NOT NULL,
    held        BIGINT NOT NULL,
    PRIMARY KEY (pid, incarnation)
) /*keyed*/;
CREATE INDEX holders_expiry ON holders (expires_at) WHERE standing = 'alive';
CREATE INDEX holders_gone ON holders (pid) WHERE standing <> 'alive' AND held > 0;

CREATE TABLE schedules (
    id              TEXT PRIMARY KEY,
    cron            TEXT NOT NULL,
    promise_id      TEXT NOT NULL,
    promise_timeout BIGINT NOT NULL,
    promise_param   TEXT NOT NULL,
    promise_tags    TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    next_run_at     BIGINT NOT NULL,
    last_run_at     BIGINT
);
CREATE INDEX schedules_next ON schedules (next_run_at);

-- What people look at. `deferred` is a task suspended by defer(): Running to its user.
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
    task_version AS try_number,
    task_failures AS failures,
    task_crashes AS crashes,
    task_pid AS pid,
    task_waiting_on AS waiting_on,
    task_progress AS progress,
    task_history AS history,
    task_error AS error,
    state AS promise_state,
    created_at, settled_at, timeout_at
FROM promises
WHERE task_state IS NOT NULL;

CREATE VIEW triggers AS
SELECT
    promises.id, promises.root, tags.value AS trigger_class,
    promises.state, promises.param, promises.value,
    promises.created_at, promises.settled_at, promises.timeout_at
FROM promises
JOIN tags ON tags.id = promises.id
WHERE tags.key = 'layby:trigger';
