-- oldest code: 27
-- A wait changes once, when what it waits for has settled. With room on its page PostgreSQL writes the
-- new row beside the old one, and touches neither of the indexes: their pages are a task's own.
/*only postgres*/ ALTER TABLE waits SET (fillfactor = 80);
