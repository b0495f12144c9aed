-- oldest code: 17
-- Which code may use the schema after a migration: the first line of each says so from here on.
-- Code from before refuses every schema it does not know.
ALTER TABLE layby_migrations ADD COLUMN oldest BIGINT NOT NULL DEFAULT 0;
