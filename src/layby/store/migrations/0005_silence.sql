-- When a worker process is gone, what was to be told to it is deleted.
CREATE INDEX listeners_address ON listeners (address);
