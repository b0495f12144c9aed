-- On the root of a run that was run again: how many lives it has had since.
ALTER TABLE promises ADD COLUMN task_lives BIGINT;
