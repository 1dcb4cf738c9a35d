-- Long transactions: each works on a copy of the catalog, a workspace, and writes content to blocks that
-- are granted to it. In the parent a grant is an extent row of store 4294967295, whose inode is the
-- number of the transaction.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- The transactions that are open. What commits after `pin_seq` retired is kept for them. One that is
-- `bound` ends with its process.
CREATE TABLE larder_transaction (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  begun_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0),
  bound INTEGER NOT NULL CHECK (bound IN (0, 1))
) STRICT;

CREATE INDEX larder_extent_granted ON larder_extent (ino) WHERE store = 4294967295;

-- In a workspace: where it may allocate. Elsewhere empty.
CREATE TABLE larder_grant (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  PRIMARY KEY (segment, start_block)
) STRICT, WITHOUT ROWID;
