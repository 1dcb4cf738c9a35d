-- Saving a file keeps what users attached to it (SAVE-1).
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- What goes over to a file that is renamed over another one: 'columns', or 'none'. It counts in the row that owns the tables.
ALTER TABLE larder_store ADD COLUMN save_keeps TEXT NOT NULL DEFAULT 'columns'
  CHECK (save_keeps IN ('none', 'columns'));

-- Superseded rows of inodes whose file had another inode first: that one is their `value`.
CREATE INDEX larder_history_saved ON larder_history (store, value) WHERE what = 'inode' AND value IS NOT NULL;
