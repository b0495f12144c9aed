-- oldest code: 27
-- A limit remembers by which rate its begins were reckoned, which older code would not keep. And how
-- far parked bodies have been looked at has a column of its own: it was kept in the cursor, after a
-- line feed, before the names under a pattern were told.
ALTER TABLE limits ADD COLUMN parked_after TEXT;
ALTER TABLE limits ADD COLUMN each_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE limits ADD COLUMN rate_us BIGINT NOT NULL DEFAULT 0;

UPDATE limits
    SET parked_after = substr("cursor", 2), "cursor" = CASE pattern WHEN 1 THEN '' END
    WHERE substr("cursor", 1, 1) = '
';
