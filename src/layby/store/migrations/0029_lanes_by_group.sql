-- oldest code: 29
-- Those that wait for a permit stand in lanes of their group and name: one whose workers are away holds
-- up nobody of another group. Who was let in is counted by lane as well, which older code would not do.
-- So those that were let in go back to their places, and the next tick lets in whoever may begin.
DROP INDEX promises_lanes;
CREATE INDEX promises_lanes ON promises (task_gate, task_group, task_name, task_gate_at, id)
    WHERE task_gate IS NOT NULL;

/*only sqlite*/ UPDATE promises SET task_gate = json_extract(task_limits, '$[0]'), task_ready_at = NULL
    WHERE task_state = 'pending' AND task_gate IS NULL AND task_gate_at IS NOT NULL
        AND task_refused IS NULL;
/*only postgres*/ UPDATE promises SET task_gate = CAST(task_limits AS json) ->> 0, task_ready_at = NULL
    WHERE task_state = 'pending' AND task_gate IS NULL AND task_gate_at IS NOT NULL
        AND task_refused IS NULL;
UPDATE limits SET opened = NULL, next_at = 0 WHERE opened IS NOT NULL;
