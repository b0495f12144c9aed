-- oldest code: 21
-- Of a task: its priority, and how many slots of a worker it needs. Those with a priority are in
-- indexes of their own, so that takes find the first of each priority, and others pay nothing.
ALTER TABLE promises ADD COLUMN task_priority BIGINT DEFAULT 0;
ALTER TABLE promises ADD COLUMN task_slots BIGINT DEFAULT 1;

DROP INDEX promises_ready_nodes;
DROP INDEX promises_ready_names;
CREATE INDEX promises_ready_nodes
    ON promises (task_group, task_ready_at, id, task_name, timeout_at)
    WHERE task_state = 'pending' AND task_kind = 'node' AND task_refused IS NULL
        AND task_priority = 0;
CREATE INDEX promises_ready_names
    ON promises (task_group, task_name, task_kind, task_ready_at, id, timeout_at)
    WHERE task_state = 'pending' AND task_group IS NOT NULL AND task_refused IS NULL
        AND task_priority = 0;
CREATE INDEX promises_prior
    ON promises (task_group, task_priority, task_ready_at, id, task_name, timeout_at)
    WHERE task_state = 'pending' AND task_refused IS NULL AND task_priority <> 0;
CREATE INDEX promises_prior_names
    ON promises (task_group, task_priority, task_name, task_ready_at, id, timeout_at)
    WHERE task_state = 'pending' AND task_refused IS NULL AND task_priority <> 0;
