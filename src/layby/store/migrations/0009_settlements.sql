-- Which call settled the promise, for calls that told their id: when the answer was lost and the
-- call is repeated, it finds that it has won. Protocol kinds do not tell one.
ALTER TABLE promises ADD COLUMN settlement_id TEXT;
