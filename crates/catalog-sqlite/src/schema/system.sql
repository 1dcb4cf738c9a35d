-- The system tables of format 2, as a new catalog gets them. `store.sql` has those of a store, `guard.sql`
-- the guards of each.
--
-- Frozen since it was released: a later version adds a step (see schema.rs). Times are nanoseconds since
-- 1970 (UTC); blocks have 4096 bytes; an allocation group has 262144. A `checksum` is a CRC-32C
-- (docs/format.md, section 5).

-- ---- The database ---------------------------------------------------------------------------------------

-- Facts of the whole database; docs/format.md says which.
CREATE TABLE larder_meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- The guard switch (CATALOG-3): the engine opens it inside its transactions and closes it before
-- COMMIT, so everybody else always finds it closed, and the guard triggers refuse them.
CREATE TABLE larder_guard_switch (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  open INTEGER NOT NULL CHECK (open IN (0, 1))
) STRICT;

-- `save_keeps`: what goes over to a file that is renamed over another one (SAVE-1). It counts in the row
-- that owns the tables.
CREATE TABLE larder_store (
  id INTEGER PRIMARY KEY CHECK (id BETWEEN 0 AND 4294967295),
  name TEXT NOT NULL COLLATE NOCASE CONSTRAINT "store names are unique" UNIQUE,
  provider TEXT NOT NULL CHECK (provider <> ''),
  mount TEXT NOT NULL CONSTRAINT "store mounts are unique" UNIQUE
    CONSTRAINT "a mount begins with /" CHECK (mount LIKE '/%'),
  table_store INTEGER NOT NULL,
  next_ino INTEGER NOT NULL CHECK (next_ino >= 2),
  save_keeps TEXT NOT NULL DEFAULT 'columns' CHECK (save_keeps IN ('none', 'columns'))
) STRICT;

-- ---- Space ----------------------------------------------------------------------------------------------

CREATE TABLE larder_segment (
  segment INTEGER PRIMARY KEY CHECK (segment BETWEEN 0 AND 4294967295),
  block_count INTEGER NOT NULL CHECK (block_count >= 0)
) STRICT;

-- The only truth of allocation (CATALOG-1): what no row covers is free. `born_seq` is the newest commit that
-- allocated a block of it, 0 one before format 2. `shared_count` objects hold all of its blocks beside the
-- one that it names; what is retired nobody holds.
CREATE TABLE larder_extent (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  born_seq INTEGER NOT NULL DEFAULT 0 CHECK (born_seq >= 0),
  retired_seq INTEGER CHECK (retired_seq >= 1),
  shared_count INTEGER NOT NULL DEFAULT 0
    CHECK (shared_count >= 0 AND (shared_count = 0 OR retired_seq IS NULL)),
  PRIMARY KEY (segment, start_block),
  CONSTRAINT "an extent lies in one allocation group"
    CHECK (start_block / 262144 = (start_block + block_count - 1) / 262144)
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_extent_retired ON larder_extent (retired_seq, block_count)
  WHERE retired_seq IS NOT NULL;

CREATE INDEX larder_extent_granted ON larder_extent (ino) WHERE store = 4294967295;

-- The objects that share a row of larder_extent. Empty as long as nothing was cloned.
CREATE TABLE larder_shared (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  PRIMARY KEY (segment, start_block, store, ino)
) STRICT, WITHOUT ROWID;

-- `changed_seq` is the newest commit that allocated, retired or reclaimed in the allocation group. The counts
-- are derived from larder_extent in the same transaction, never the other way round (CATALOG-8):
-- `used_blocks` of all rows of the group, `retired_blocks` of the retired ones.
CREATE TABLE larder_ag (
  segment INTEGER NOT NULL,
  ag INTEGER NOT NULL CHECK (ag >= 0),
  changed_seq INTEGER NOT NULL,
  used_blocks INTEGER NOT NULL DEFAULT 0 CHECK (used_blocks BETWEEN 0 AND 262144),
  retired_blocks INTEGER NOT NULL DEFAULT 0 CHECK (retired_blocks BETWEEN 0 AND 262144),
  PRIMARY KEY (segment, ag)
) STRICT, WITHOUT ROWID;

-- ---- Where content lies ---------------------------------------------------------------------------------

-- One row for each page of a list of pieces, of objects that saw a fragment operation; page 0 is the root.
-- docs/format.md has the bytes. An object without rows has no pieces.
CREATE TABLE larder_piece (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  entries BLOB NOT NULL CHECK (length(entries) > 0),
  since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (store, ino, page)
) STRICT, WITHOUT ROWID;

-- Pages that the maps of several objects have: there `runs` is the reference. A row never changes.
CREATE TABLE larder_map_page (
  number INTEGER PRIMARY KEY CHECK (number >= 1),
  reference BLOB NOT NULL UNIQUE CHECK (length(reference) = 14),
  bytes BLOB NOT NULL CHECK (length(bytes) >= 32)
) STRICT;

-- One row for each of them. `row_count` says in how many rows of all maps of the present its reference stands. From commit
-- `retired_seq` on it stands in none; the history may name it till then (SHARE-7). A table of its own: 0 and 1 take less
-- room than 2, and a row that changes its length is written anew, with all its bytes.
CREATE TABLE larder_map_page_use (
  number INTEGER PRIMARY KEY CHECK (number >= 1),
  row_count INTEGER NOT NULL CHECK (row_count >= 0),
  retired_seq INTEGER CHECK (retired_seq >= 0),
  CONSTRAINT "what no row names is retired" CHECK ((row_count = 0) = (retired_seq IS NOT NULL))
) STRICT;

CREATE INDEX larder_map_page_retired ON larder_map_page_use (retired_seq) WHERE retired_seq IS NOT NULL;

-- Redo rows: the newest content of blocks that small overwrites changed, until it is written in
-- place (REDO-1). A log: of one object the row with the higher id counts. A row without bytes ends
-- the redo rows of its blocks. The checksum is of `blocks`, and `bytes` behind it.
CREATE TABLE larder_redo_row (
  id INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL CHECK (seq >= 1),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  block_count INTEGER NOT NULL CHECK (block_count >= 0),
  blocks BLOB NOT NULL CHECK (length(blocks) > 0 AND length(blocks) % 8 = 0),
  bytes BLOB,
  checksum INTEGER NOT NULL CHECK (checksum BETWEEN 0 AND 4294967295),
  CONSTRAINT "a redo row holds its blocks whole, or none of them"
    CHECK (block_count = coalesce(length(bytes), 0) / 4096
      AND coalesce(length(bytes), 0) IN (0, length(blocks) * 512))
) STRICT;

CREATE INDEX larder_redo_row_ino ON larder_redo_row (store, ino, block_count);

-- ---- Sessions and long transactions ---------------------------------------------------------------------

-- `epoch` counts how often the session was let in again after its lease ran out; 0 where sessions hold none.
CREATE TABLE larder_session (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  started_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0),
  epoch INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0)
) STRICT;

-- Inodes without a name that live on because a session has them open, and the commit since when.
CREATE TABLE larder_orphan (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (store, ino)
) STRICT, WITHOUT ROWID;

-- Which session has which orphan open.
CREATE TABLE larder_holder (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL,
  session INTEGER NOT NULL,
  PRIMARY KEY (store, ino, session)
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_holder_session ON larder_holder (session);

-- The long transactions that are open: each works on a copy of the catalog, a workspace, and writes content to
-- blocks that are granted to it. What commits after `pin_seq` retired is kept for them. One that is `bound`
-- ends with its process. A grant is an extent row of store 4294967295, whose inode is the number of the
-- transaction.
CREATE TABLE larder_transaction (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  begun_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0),
  bound INTEGER NOT NULL CHECK (bound IN (0, 1))
) STRICT;

-- In a workspace: where it may allocate. Elsewhere empty.
CREATE TABLE larder_grant (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  PRIMARY KEY (segment, start_block)
) STRICT, WITHOUT ROWID;

-- ---- History --------------------------------------------------------------------------------------------

-- What commits superseded stays readable for a while. `since_seq`, in every table whose rows are kept, is the
-- commit that wrote the row; a superseded row moves here, with `until_seq`, the commit that superseded it, and
-- the checksum that it had. Appended to, in the order of `until_seq`, and pruned from the front (HISTORY-2).
-- `what` says which columns count:
--   commit   the moment of a whole commit: `key` is its time, nanoseconds since 1970
--   inode    a row of a store table, but the user's columns; `key` is 0
--   name     an entry of directory `ino`: `key` is the name, `value` the inode
--   content  `value` is the inline content, of a 'symlink' (`kind`) the target; `key` is 0
--   map      a page of the extent map: `key` is its number, `value` its bytes
--   piece    a page of the list of pieces, likewise
--   xattr    an extended attribute: `key` is its name
--   redo     a redo row: `key` is its id, `value` its bytes, `extra` its blocks
--   row      a row of the temporal table `ino`: `key` is its rowid, or the primary key of a table without one, `value`
--            its columns as JSON, NULL when it was not there, `mtime_ns` when that ended; `since_seq` says nothing
CREATE TABLE larder_history (
  id INTEGER PRIMARY KEY,
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  what TEXT NOT NULL CHECK (what IN
    ('commit', 'inode', 'name', 'content', 'map', 'piece', 'xattr', 'redo', 'row')),
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
  checksum INTEGER CHECK (checksum BETWEEN 0 AND 4294967295),
  CONSTRAINT "a commit belongs to no inode, a row to no store, all else to both"
    CHECK ((what = 'commit') = (ino IS NULL) AND (what IN ('commit', 'row')) = (store IS NULL)),
  CONSTRAINT "what is superseded was there" CHECK (since_seq < until_seq OR what = 'commit')
) STRICT;

CREATE INDEX larder_history_key ON larder_history (store, ino, what, key, until_seq, since_seq)
  WHERE store IS NOT NULL;

CREATE INDEX larder_history_named ON larder_history (store, value, until_seq) WHERE what = 'name';

-- The moments, without the rows between them.
CREATE INDEX larder_history_moment ON larder_history (what) WHERE what = 'commit';

CREATE INDEX larder_history_row ON larder_history (ino, key, until_seq) WHERE what = 'row';

-- Superseded rows of inodes whose file had another inode first: that one is their `value`.
CREATE INDEX larder_history_saved ON larder_history (store, value) WHERE what = 'inode' AND value IS NOT NULL;

-- Pre-images: for commits before `until_seq` the content of these blocks is that of the copy, since
-- a redo row was written over them (HISTORY-4), or what they held was moved there (HISTORY-5).
CREATE TABLE larder_pre_image (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  copy_segment INTEGER NOT NULL CHECK (copy_segment BETWEEN 0 AND 4294967295),
  copy_block INTEGER NOT NULL CHECK (copy_block >= 0),
  PRIMARY KEY (segment, start_block, until_seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_pre_image_until ON larder_pre_image (until_seq);

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

-- Which sessions read as of which commit now (HISTORY-3).
CREATE TABLE larder_as_of (
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL CHECK (seq >= 0)
) STRICT;

-- Tables of users whose rows are kept, by triggers of theirs. A row stays when its table is let go, as long as there may
-- be history of it; then `until_seq` says since when.
CREATE TABLE larder_temporal (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL CHECK (name <> ''),
  since_seq INTEGER NOT NULL CHECK (since_seq >= 0),
  until_seq INTEGER
) STRICT;

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

-- ---- The change feed ------------------------------------------------------------------------------------

-- What commits did, in order, for those who follow it (FEED-1). Each change has a number of its own; a row holds
-- those from seq - change_count + 1 to seq. Rows without a gap, the last one always stays. 'begin' and 'end' say
-- that the feed was switched on or off there; while the newest row is 'end', or there is none, nothing is written.
-- A 'commit' has the bytes of docs/format.md in `changes`; the others are what plain SQL did to a row, written by
-- triggers in its own transaction: `tbl` is the table and `row_key` the rowid, or the primary key of a table
-- without one.
CREATE TABLE larder_change (
  seq INTEGER PRIMARY KEY CHECK (seq >= 1),
  change_count INTEGER NOT NULL DEFAULT 1 CHECK (change_count >= 1),
  at_ns INTEGER NOT NULL,
  op TEXT NOT NULL CHECK (op IN
    ('commit', 'begin', 'end', 'insert', 'update', 'delete', 'attributes', 'columns')),
  commit_seq INTEGER,
  changes BLOB,
  tbl TEXT,
  row_key ANY,
  CONSTRAINT "a commit has changes, a row of a table its table"
    CHECK ((op = 'commit') = (changes IS NOT NULL)
      AND (op IN ('commit', 'begin', 'end')) = (tbl IS NULL))
) STRICT;

-- ---- Guards that are like no others ---------------------------------------------------------------------

INSERT INTO larder_guard_switch (id, open) VALUES (1, 0);

CREATE TRIGGER larder_guard_switch_stays BEFORE DELETE ON larder_guard_switch
BEGIN
  SELECT RAISE(ABORT, 'larder_guard_switch is kept by the engine; leave its row alone');
END;

CREATE TRIGGER larder_guard_switch_is_one BEFORE INSERT ON larder_guard_switch
BEGIN
  SELECT RAISE(ABORT, 'larder_guard_switch is kept by the engine; leave its row alone');
END;

-- Plain SQL may only append, and only what its own triggers say of rows.
CREATE TRIGGER larder_change_appends BEFORE INSERT ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND (NEW.seq > 0 OR NEW.change_count <> 1 OR NEW.op IN ('commit', 'begin', 'end'))
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;

CREATE TRIGGER larder_change_no_update BEFORE UPDATE ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;

CREATE TRIGGER larder_change_no_delete BEFORE DELETE ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;

-- Plain SQL may only append, and only attributes and rows that it changes itself: its own triggers do.
CREATE TRIGGER larder_history_appends BEFORE INSERT ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND (NEW.what NOT IN ('inode', 'row') OR NEW.id > 0
    OR NEW.until_seq <> 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq'))
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

-- A number below that SQLite would have given stands before what is pruned first.
CREATE TRIGGER larder_history_grows AFTER INSERT ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND NEW.id < 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

CREATE TRIGGER larder_history_no_update BEFORE UPDATE ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;

CREATE TRIGGER larder_history_no_delete BEFORE DELETE ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END;
