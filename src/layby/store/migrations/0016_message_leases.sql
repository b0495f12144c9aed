-- Which process offers a message, and until when it alone may: only where several share a store.
ALTER TABLE messages ADD COLUMN offered_by TEXT;
ALTER TABLE messages ADD COLUMN offered_until BIGINT;
CREATE INDEX messages_offered ON messages (offered_by) WHERE offered_by IS NOT NULL;
