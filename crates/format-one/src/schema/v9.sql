-- Clones, whose extents have several holders; sealed snapshots; who made a commit.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- ---- Clones -------------------------------------------------------------------------------------------

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

-- ---- Sealed snapshots: evidence of what they showed ----------------------------------------------------

-- A chain: each link is a digest over the one before and over all that a snapshot shows (SEAL-1). Rows stay when their
-- snapshot is destroyed.
CREATE TABLE larder_seal (
  number INTEGER PRIMARY KEY CHECK (number >= 1),
  snapshot TEXT NOT NULL COLLATE NOCASE CHECK (snapshot <> ''),
  seq INTEGER NOT NULL CHECK (seq >= 0),
  at_ns INTEGER NOT NULL,
  sealed_ns INTEGER NOT NULL,
  state BLOB NOT NULL CHECK (length(state) = 32),
  previous BLOB NOT NULL CHECK (length(previous) = 32),
  link BLOB NOT NULL CHECK (length(link) = 32),
  public_key BLOB CHECK (length(public_key) = 32),
  signature BLOB CHECK (length(signature) = 64),
  is_destroyed INTEGER NOT NULL DEFAULT 0 CHECK (is_destroyed IN (0, 1)),
  CONSTRAINT "a signature has a key" CHECK ((public_key IS NULL) = (signature IS NULL))
) STRICT;

-- What a state digest is made of, and where a difference is. `what` says which columns count:
--   store      the tree of `store`, whose name is `name`
--   directory  the entries of directory `number` of `store`, `hints` of each 12 bytes; no part of the state by itself
--   table      the rows of temporal table `number`, whose name is `name`; `columns` with NUL between; `hints` likewise
--   history    rows of commits after `from_seq` up to `number`: of `store`, or -1 the moments, -2 rows of tables
CREATE TABLE larder_sealed (
  id INTEGER PRIMARY KEY,
  seal INTEGER NOT NULL CHECK (seal >= 1),
  what TEXT NOT NULL CHECK (what IN ('store', 'directory', 'table', 'history')),
  store INTEGER NOT NULL CHECK (store >= -2),
  number INTEGER NOT NULL CHECK (number >= 0),
  from_seq INTEGER NOT NULL CHECK (from_seq >= 0),
  name TEXT NOT NULL,
  columns TEXT NOT NULL,
  entry_count INTEGER NOT NULL CHECK (entry_count >= 0),
  digest BLOB NOT NULL CHECK (length(digest) = 32),
  hints BLOB NOT NULL
) STRICT;

CREATE INDEX larder_sealed_part ON larder_sealed (seal, what, store, number);

-- ---- Who made commits ------------------------------------------------------------------------------------

-- What a session was, as long as the history may name it (AUTHOR-1): the row of a commit in `larder_history` has the session in
-- `value`, and in `uid` the user for whom all of it was made. `since_seq` and `until_seq` are the newest commits when the
-- session began and ended; one that made none leaves no row.
CREATE TABLE larder_author (
  session INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  uid INTEGER NOT NULL,
  label TEXT NOT NULL,
  since_seq INTEGER NOT NULL,
  until_seq INTEGER
) STRICT;

UPDATE larder_gate SET open = 1;
INSERT INTO larder_author (session, pid, uid, label, since_seq) SELECT id, pid, 0, label, 0 FROM larder_session;
UPDATE larder_gate SET open = 0;
