-- oldest code: 29
-- The wait in which the last claim of a task has ended, and since when it lasted: a restart of its
-- worker does not make it look new. Older code keeps no such note; then it begins anew, as before.
ALTER TABLE promises ADD COLUMN task_waited TEXT;
