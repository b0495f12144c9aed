-- oldest code: 17
-- What servers on one database share and no request shows: the key that signs links.
CREATE TABLE secrets (
    name   TEXT PRIMARY KEY,
    secret TEXT NOT NULL
);
