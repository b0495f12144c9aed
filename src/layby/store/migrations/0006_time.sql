-- Until when the waits of a task last, by their record ids: no restart gives them more time.
ALTER TABLE promises ADD COLUMN task_deadlines TEXT;

-- How far store time has come: written with every commit, so that it never goes back.
CREATE TABLE store_time (at BIGINT NOT NULL);
INSERT INTO store_time VALUES (0);
