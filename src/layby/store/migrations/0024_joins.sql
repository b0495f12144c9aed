-- oldest code: 24
-- Of a join, the promise of one call of `map`: how many items it has, once all of them are there.
ALTER TABLE promises ADD COLUMN task_items BIGINT;
