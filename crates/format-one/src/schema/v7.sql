-- Time: what commits superseded stays readable for a while. `since_seq`, in every table whose rows are kept,
-- is the commit that wrote the row; a superseded row moves here, with `until_seq`, the commit that superseded it.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- Appended to, in the order of `until_seq`, and pruned from the front (HISTORY-2). `what` says which columns count:
--   commit   the moment of a whole commit: `key` is its time, nanoseconds since 1970
--   inode    a row of a store table, but the user's columns; `key` is 0
--   name     an entry of directory `ino`: `key` is the name, `value` the inode
--   content  `value` is the inline content, of a 'symlink' (`kind`) the target; `key` is 0
--   map      a page of the extent map: `key` is its number, `value` its bytes
--   piece    a page of the list of pieces, likewise
--   xattr    an extended attribute: `key` is its name
--   patch    a redo row: `key` is its id, `value` its bytes, `extra` its blocks
CREATE TABLE larder_history (
  id INTEGER PRIMARY KEY,
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  what TEXT NOT NULL CHECK (what IN
    ('commit', 'inode', 'name', 'content', 'map', 'piece', 'xattr', 'patch')),
  store INTEGER,
  ino INTEGER,
  key ANY NOT NULL,
  since_seq INTEGER NOT NULL CHECK (since_seq >= 0),
  value ANY,
  extra BLOB,
  kind TEXT,
  mode INTEGER,
  uid INTEGER,
  gid INTEGER,
  nlink INTEGER,
  size INTEGER,
  blocks INTEGER,
  atime_ns INTEGER,
  mtime_ns INTEGER,
  ctime_ns INTEGER,
  btime_ns INTEGER,
  rdev INTEGER,
  CONSTRAINT "a commit belongs to no inode, all else to one"
    CHECK ((what = 'commit') = (store IS NULL) AND (store IS NULL) = (ino IS NULL)),
  CONSTRAINT "what is superseded was there" CHECK (since_seq < until_seq OR what = 'commit')
) STRICT;

CREATE INDEX larder_history_key ON larder_history (store, ino, what, key, until_seq, since_seq)
  WHERE store IS NOT NULL;

CREATE INDEX larder_history_named ON larder_history (store, value, until_seq) WHERE what = 'name';

-- Pre-images: for commits before `until_seq` the content of these blocks is that of the copy, since
-- a redo row was written over them (HISTORY-4), or what they held was moved there (HISTORY-5).
CREATE TABLE larder_home (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  copy_segment INTEGER NOT NULL CHECK (copy_segment BETWEEN 0 AND 4294967295),
  copy_block INTEGER NOT NULL CHECK (copy_block >= 0),
  PRIMARY KEY (segment, start_block, until_seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_home_until ON larder_home (until_seq);

-- Moments with a name. Nothing that a snapshot can reach is reclaimed.
CREATE TABLE larder_snapshot (
  name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE CHECK (name <> ''),
  seq INTEGER NOT NULL CHECK (seq >= 0),
  at_ns INTEGER NOT NULL,
  created_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_snapshot_seq ON larder_snapshot (seq);

-- Why a snapshot must not be destroyed.
CREATE TABLE larder_hold (
  snapshot TEXT NOT NULL COLLATE NOCASE,
  tag TEXT NOT NULL CHECK (tag <> ''),
  PRIMARY KEY (snapshot, tag)
) STRICT, WITHOUT ROWID;

-- Who reads the past now, and as of which commit (HISTORY-3).
CREATE TABLE larder_past (
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL CHECK (seq >= 0)
) STRICT;

ALTER TABLE larder_piece ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;

-- The oldest commit whose state can be read, and its time.
UPDATE larder_gate SET open = 1;
INSERT INTO larder_meta (key, value)
SELECT 'history_begins_seq', value FROM larder_meta WHERE key = 'commit_seq';
INSERT INTO larder_meta (key, value)
SELECT 'history_begins_ns', CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000
FROM larder_meta WHERE key = 'commit_seq';
-- What was recorded for everybody, and did nothing; who asked for another retention gets it.
UPDATE larder_meta SET value = 0 WHERE key = 'retention_ns' AND value = 3600000000000;
UPDATE larder_gate SET open = 0;

-- Plain SQL may only append, and only attributes that it changes itself: its own triggers do.
CREATE TRIGGER larder_history_appends BEFORE INSERT ON larder_history
WHEN (SELECT open FROM larder_gate) IS NOT 1
  AND (NEW.what <> 'inode' OR NEW.id > 0
    OR NEW.until_seq <> 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq'))
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

CREATE TRIGGER larder_history_no_update BEFORE UPDATE ON larder_history
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

CREATE TRIGGER larder_history_no_delete BEFORE DELETE ON larder_history
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;
