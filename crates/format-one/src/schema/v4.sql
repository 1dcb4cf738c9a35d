-- Redo rows: the newest content of blocks that small overwrites changed, until it is written in
-- place (REDO-1). A log: of one object the row with the higher id counts. A row without bytes ends
-- the redo rows of its blocks.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

CREATE TABLE larder_patch (
  id INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL CHECK (seq >= 1),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  block_count INTEGER NOT NULL CHECK (block_count >= 0),
  blocks BLOB NOT NULL CHECK (length(blocks) > 0 AND length(blocks) % 8 = 0),
  bytes BLOB,
  CONSTRAINT "a patch holds its blocks whole, or none of them"
    CHECK (block_count = coalesce(length(bytes), 0) / 4096
      AND coalesce(length(bytes), 0) IN (0, length(blocks) * 512))
) STRICT;

CREATE INDEX larder_patch_ino ON larder_patch (store, ino, block_count);
