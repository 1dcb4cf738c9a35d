-- The next format version: lists of pieces, of objects that saw a fragment operation.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- One row for each page of a list; page 0 is the root. docs/format.md has the bytes. An object without
-- rows has no pieces.
CREATE TABLE larder_piece (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  entries BLOB NOT NULL CHECK (length(entries) > 0),
  PRIMARY KEY (store, ino, page)
) STRICT, WITHOUT ROWID;
