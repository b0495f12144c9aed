-- What waits, longest first: tasks, and promises that somebody outside has to settle.
ALTER TABLE promises ADD COLUMN task_waiting_since BIGINT;
-- What each worker process has code for, so that a task nobody can run is seen.
ALTER TABLE holders ADD COLUMN names TEXT NOT NULL DEFAULT '[]';

-- Of what waits already, only its birth is known.
UPDATE promises SET task_waiting_since = created_at
WHERE task_state IN ('pending', 'halted')
    OR (task_state = 'suspended' AND task_waits_left = 0)
    OR (task_state = 'acquired' AND task_waiting_on IS NOT NULL);

CREATE INDEX promises_waiting ON promises (task_waiting_since, id)
    WHERE task_waiting_since IS NOT NULL;
CREATE INDEX promises_outside ON promises (created_at, id)
    WHERE settled_at IS NULL AND task_target IS NULL AND timer = 0;
CREATE INDEX promises_newest_runs ON promises (created_at, id) WHERE task_kind = 'root';
