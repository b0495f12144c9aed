-- Pruning: when a promise was pruned, and how far automatic pruning has come. Each stage of a pass
-- is an index by time; `core.endings.stage_of` says the same of a row. Resolved is written
-- so that the planner cannot prefer the index of states, which is not ordered by time.
ALTER TABLE promises ADD COLUMN expired_at BIGINT;
CREATE TABLE pruning (
    id     TEXT PRIMARY KEY,
    due_at BIGINT NOT NULL,
    "cursor" TEXT NOT NULL
) /*keyed*/;

CREATE INDEX promises_completed ON promises (settled_at, id)
    WHERE task_kind = 'root' AND substr(state, 1, 3) = 'res';
CREATE INDEX promises_failed ON promises (settled_at, id)
    WHERE task_kind = 'root' AND settled_at IS NOT NULL AND state <> 'resolved';
CREATE INDEX promises_foreign_completed ON promises (settled_at, id)
    WHERE COALESCE(task_kind, '') <> 'root' AND substr(state, 1, 3) = 'res'
        AND expired_at IS NULL AND substr(id, 1, 4) <> 'run/';
CREATE INDEX promises_foreign_failed ON promises (settled_at, id)
    WHERE COALESCE(task_kind, '') <> 'root' AND settled_at IS NOT NULL AND state <> 'resolved'
        AND expired_at IS NULL AND substr(id, 1, 4) <> 'run/';
CREATE INDEX promises_placeholders ON promises (created_at, id)
    WHERE placeholder = 1 AND settled_at IS NULL;
CREATE INDEX promises_expired ON promises (expired_at, id) WHERE expired_at IS NOT NULL;

-- Since when a holder is gone: until now that was not kept.
UPDATE holders SET expires_at = (SELECT at FROM store_time) WHERE standing <> 'alive';
CREATE INDEX holders_past ON holders (expires_at, pid) WHERE standing <> 'alive' AND held = 0;

-- Indexes that grew with every run for nothing: the target of our own tasks follows from their
-- group, and a task is fulfilled when its promise is settled.
DROP INDEX promises_target;
CREATE INDEX promises_target ON promises (task_target, id)
    WHERE task_target IS NOT NULL AND task_group IS NULL;
DROP INDEX promises_task_state;
CREATE INDEX promises_task_state ON promises (task_state, id)
    WHERE task_state <> 'fulfilled';
