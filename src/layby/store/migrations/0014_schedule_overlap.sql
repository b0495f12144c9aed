-- What a schedule of runs does about overlap, whether it is paused, and what it has left out.
ALTER TABLE schedules ADD COLUMN overlap TEXT NOT NULL DEFAULT 'allow';
ALTER TABLE schedules ADD COLUMN paused_at BIGINT;
ALTER TABLE schedules ADD COLUMN skipped BIGINT NOT NULL DEFAULT 0;
ALTER TABLE schedules ADD COLUMN full_until BIGINT;
