-- Tables of users have a past too: `larder_history` takes what = 'row'.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- A CHECK cannot be changed in place. Triggers and indexes go with the table, and are made again below.
CREATE TEMP TABLE larder_history_copy AS SELECT * FROM larder_history;
DROP TABLE larder_history;

-- Appended to, in the order of `until_seq`, and pruned from the front (HISTORY-2). `what` says which columns count:
--   commit   the moment of a whole commit: `key` is its time, nanoseconds since 1970
--   inode    a row of a store table, but the user's columns; `key` is 0
--   name     an entry of directory `ino`: `key` is the name, `value` the inode
--   content  `value` is the inline content, of a 'symlink' (`kind`) the target; `key` is 0
--   map      a page of the extent map: `key` is its number, `value` its bytes
--   piece    a page of the list of pieces, likewise
--   xattr    an extended attribute: `key` is its name
--   patch    a redo row: `key` is its id, `value` its bytes, `extra` its blocks
--   row      a row of the temporal table `ino`: `key` is its rowid, or the primary key of a table without one, `value`
--            its columns as JSON, NULL when it was not there, `mtime_ns` when that ended; `since_seq` says nothing
CREATE TABLE larder_history (
  id INTEGER PRIMARY KEY,
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  what TEXT NOT NULL CHECK (what IN
    ('commit', 'inode', 'name', 'content', 'map', 'piece', 'xattr', 'patch', 'row')),
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
  CONSTRAINT "a commit belongs to no inode, a row to no store, all else to both"
    CHECK ((what = 'commit') = (ino IS NULL) AND (what IN ('commit', 'row')) = (store IS NULL)),
  CONSTRAINT "what is superseded was there" CHECK (since_seq < until_seq OR what = 'commit')
) STRICT;

INSERT INTO larder_history SELECT * FROM larder_history_copy ORDER BY id;
DROP TABLE larder_history_copy;

CREATE INDEX larder_history_key ON larder_history (store, ino, what, key, until_seq, since_seq)
  WHERE store IS NOT NULL;

CREATE INDEX larder_history_named ON larder_history (store, value, until_seq) WHERE what = 'name';

-- The moments, without the rows between them.
CREATE INDEX larder_history_moment ON larder_history (what) WHERE what = 'commit';

CREATE INDEX larder_history_row ON larder_history (ino, key, until_seq) WHERE what = 'row';

-- Tables of users whose rows are kept, by triggers of theirs. A row stays when its table is let go, as long as there may
-- be history of it; then `until_seq` says since when.
CREATE TABLE larder_temporal (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL CHECK (name <> ''),
  since_seq INTEGER NOT NULL CHECK (since_seq >= 0),
  until_seq INTEGER
) STRICT;

-- Plain SQL may only append, and only attributes and rows that it changes itself: its own triggers do.
CREATE TRIGGER larder_history_appends BEFORE INSERT ON larder_history
WHEN (SELECT open FROM larder_gate) IS NOT 1
  AND (NEW.what NOT IN ('inode', 'row') OR NEW.id > 0
    OR NEW.until_seq <> 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq'))
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

-- A number below that SQLite would have given stands before what is pruned first.
CREATE TRIGGER larder_history_grows AFTER INSERT ON larder_history
WHEN (SELECT open FROM larder_gate) IS NOT 1 AND NEW.id < 1
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
