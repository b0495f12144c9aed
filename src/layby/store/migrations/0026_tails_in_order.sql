-- oldest code: 26
-- Of tasks that were let in under a limit, more is stored than their count, which older code does
-- not read. And tails that are due in the same millisecond are found in the order of their ids, on
-- every database, without sorting.
DROP INDEX promises_tail;
CREATE INDEX promises_tail ON promises (tail_at, id) WHERE tail_at IS NOT NULL;
