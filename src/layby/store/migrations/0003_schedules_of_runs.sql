-- A schedule may start runs, in a time zone, and leave out what was missed. The schedules that
-- stand already create promises by UTC and leave nothing out.
ALTER TABLE schedules ADD COLUMN timezone TEXT NOT NULL DEFAULT 'UTC';
ALTER TABLE schedules ADD COLUMN catch_up INTEGER NOT NULL DEFAULT 1;
ALTER TABLE schedules ADD COLUMN flow TEXT;
ALTER TABLE schedules ADD COLUMN nodes TEXT NOT NULL DEFAULT '[]';
