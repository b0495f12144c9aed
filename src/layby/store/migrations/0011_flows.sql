-- What workers have code for, as the last of them has said it: so that a process without the code
-- can start a run by the workflow's name.
CREATE TABLE flows (
    "group"      TEXT NOT NULL,
    name         TEXT NOT NULL,
    layout       TEXT NOT NULL,
    published_at BIGINT NOT NULL,
    PRIMARY KEY ("group", name)
) /*keyed*/;
CREATE INDEX flows_name ON flows (name);
