-- How far store time has come in each process that writes: no two of them wait for one row.
CREATE TABLE server_times (
    server TEXT PRIMARY KEY,
    at     BIGINT NOT NULL
) /*keyed*/;

-- A pid has one living holder, even if two processes register at once.
CREATE UNIQUE INDEX holders_living ON holders (pid) WHERE standing = 'alive';
