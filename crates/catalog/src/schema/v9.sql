-- Clones: several objects may hold one extent.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- How many objects hold all of the row's blocks beside the one that it names. What is retired nobody holds.
ALTER TABLE larder_extent ADD COLUMN shared_count INTEGER NOT NULL DEFAULT 0
  CHECK (shared_count >= 0 AND (shared_count = 0 OR retired_seq IS NULL));

-- Those objects. Empty as long as nothing was cloned.
CREATE TABLE larder_shared (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  PRIMARY KEY (segment, start_block, store, ino)
) STRICT, WITHOUT ROWID;
