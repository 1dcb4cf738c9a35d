-- The schema of the newest format, word for word as SQLite keeps it: `audit` compares catalogs with it.
-- Written by the test `the_file_is_what_the_steps_make` from the steps; LARDER_WRITE_SCHEMA=1 writes it.

--@ format 13

--@ system table larder_ag larder_ag
CREATE TABLE larder_ag (
  segment INTEGER NOT NULL,
  ag INTEGER NOT NULL CHECK (ag >= 0),
  changed_seq INTEGER NOT NULL,
  used_blocks INTEGER NOT NULL DEFAULT 0 CHECK (used_blocks BETWEEN 0 AND 262144),
  retired_blocks INTEGER NOT NULL DEFAULT 0 CHECK (retired_blocks BETWEEN 0 AND 262144),
  PRIMARY KEY (segment, ag)
) STRICT, WITHOUT ROWID

--@ system table larder_as_of larder_as_of
CREATE TABLE larder_as_of (
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL CHECK (seq >= 0)
) STRICT

--@ system table larder_author larder_author
CREATE TABLE larder_author (
  session INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  uid INTEGER NOT NULL,
  label TEXT NOT NULL,
  since_seq INTEGER NOT NULL,
  until_seq INTEGER
) STRICT

--@ system table larder_change larder_change
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
) STRICT

--@ system trigger larder_change_appends larder_change
CREATE TRIGGER larder_change_appends BEFORE INSERT ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND (NEW.seq > 0 OR NEW.change_count <> 1 OR NEW.op IN ('commit', 'begin', 'end'))
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END

--@ system trigger larder_change_no_delete larder_change
CREATE TRIGGER larder_change_no_delete BEFORE DELETE ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END

--@ system trigger larder_change_no_update larder_change
CREATE TRIGGER larder_change_no_update BEFORE UPDATE ON larder_change
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END

--@ system table larder_extent larder_extent
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
) STRICT, WITHOUT ROWID

--@ system index larder_extent_granted larder_extent
CREATE INDEX larder_extent_granted ON larder_extent (ino) WHERE store = 4294967295

--@ system index larder_extent_retired larder_extent
CREATE INDEX larder_extent_retired ON larder_extent (retired_seq, block_count)
  WHERE retired_seq IS NOT NULL

--@ system table larder_grant larder_grant
CREATE TABLE larder_grant (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  PRIMARY KEY (segment, start_block)
) STRICT, WITHOUT ROWID

--@ system table larder_guard_switch larder_guard_switch
CREATE TABLE larder_guard_switch (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  open INTEGER NOT NULL CHECK (open IN (0, 1))
) STRICT

--@ system trigger larder_guard_switch_is_one larder_guard_switch
CREATE TRIGGER larder_guard_switch_is_one BEFORE INSERT ON larder_guard_switch
BEGIN
  SELECT RAISE(ABORT, 'larder_guard_switch is kept by the engine; leave its row alone');
END

--@ system trigger larder_guard_switch_stays larder_guard_switch
CREATE TRIGGER larder_guard_switch_stays BEFORE DELETE ON larder_guard_switch
BEGIN
  SELECT RAISE(ABORT, 'larder_guard_switch is kept by the engine; leave its row alone');
END

--@ system table larder_history larder_history
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
) STRICT

--@ system trigger larder_history_appends larder_history
CREATE TRIGGER larder_history_appends BEFORE INSERT ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND (NEW.what NOT IN ('inode', 'row') OR NEW.id > 0
    OR NEW.until_seq <> 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq'))
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END

--@ system trigger larder_history_grows larder_history
CREATE TRIGGER larder_history_grows AFTER INSERT ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND NEW.id < 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END

--@ system index larder_history_key larder_history
CREATE INDEX larder_history_key ON larder_history (store, ino, what, key, until_seq, since_seq)
  WHERE store IS NOT NULL

--@ system index larder_history_moment larder_history
CREATE INDEX larder_history_moment ON larder_history (what) WHERE what = 'commit'

--@ system index larder_history_named larder_history
CREATE INDEX larder_history_named ON larder_history (store, value, until_seq) WHERE what = 'name'

--@ system trigger larder_history_no_delete larder_history
CREATE TRIGGER larder_history_no_delete BEFORE DELETE ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END

--@ system trigger larder_history_no_update larder_history
CREATE TRIGGER larder_history_no_update BEFORE UPDATE ON larder_history
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_history is kept by the engine; see larder log');
END

--@ system index larder_history_row larder_history
CREATE INDEX larder_history_row ON larder_history (ino, key, until_seq) WHERE what = 'row'

--@ system index larder_history_saved larder_history
CREATE INDEX larder_history_saved ON larder_history (store, value) WHERE what = 'inode' AND value IS NOT NULL

--@ system table larder_hold larder_hold
CREATE TABLE larder_hold (
  snapshot TEXT NOT NULL COLLATE NOCASE,
  tag TEXT NOT NULL CHECK (tag <> ''),
  PRIMARY KEY (snapshot, tag)
) STRICT, WITHOUT ROWID

--@ system table larder_holder larder_holder
CREATE TABLE larder_holder (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL,
  session INTEGER NOT NULL,
  PRIMARY KEY (store, ino, session)
) STRICT, WITHOUT ROWID

--@ system index larder_holder_session larder_holder
CREATE INDEX larder_holder_session ON larder_holder (session)

--@ system trigger larder_larder_ag_no_delete larder_ag
CREATE TRIGGER "larder_larder_ag_no_delete" BEFORE DELETE ON "larder_ag"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_ag is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_ag_no_insert larder_ag
CREATE TRIGGER "larder_larder_ag_no_insert" BEFORE INSERT ON "larder_ag"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_ag is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_ag_no_update larder_ag
CREATE TRIGGER "larder_larder_ag_no_update" BEFORE UPDATE ON "larder_ag"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_ag is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_as_of_no_delete larder_as_of
CREATE TRIGGER "larder_larder_as_of_no_delete" BEFORE DELETE ON "larder_as_of"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_as_of is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_as_of_no_insert larder_as_of
CREATE TRIGGER "larder_larder_as_of_no_insert" BEFORE INSERT ON "larder_as_of"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_as_of is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_as_of_no_update larder_as_of
CREATE TRIGGER "larder_larder_as_of_no_update" BEFORE UPDATE ON "larder_as_of"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_as_of is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_author_no_delete larder_author
CREATE TRIGGER "larder_larder_author_no_delete" BEFORE DELETE ON "larder_author"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_author is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_author_no_insert larder_author
CREATE TRIGGER "larder_larder_author_no_insert" BEFORE INSERT ON "larder_author"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_author is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_author_no_update larder_author
CREATE TRIGGER "larder_larder_author_no_update" BEFORE UPDATE ON "larder_author"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_author is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_extent_no_delete larder_extent
CREATE TRIGGER "larder_larder_extent_no_delete" BEFORE DELETE ON "larder_extent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_extent is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_extent_no_insert larder_extent
CREATE TRIGGER "larder_larder_extent_no_insert" BEFORE INSERT ON "larder_extent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_extent is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_extent_no_update larder_extent
CREATE TRIGGER "larder_larder_extent_no_update" BEFORE UPDATE ON "larder_extent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_extent is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_grant_no_delete larder_grant
CREATE TRIGGER "larder_larder_grant_no_delete" BEFORE DELETE ON "larder_grant"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_grant is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_grant_no_insert larder_grant
CREATE TRIGGER "larder_larder_grant_no_insert" BEFORE INSERT ON "larder_grant"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_grant is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_grant_no_update larder_grant
CREATE TRIGGER "larder_larder_grant_no_update" BEFORE UPDATE ON "larder_grant"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_grant is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_hold_no_delete larder_hold
CREATE TRIGGER "larder_larder_hold_no_delete" BEFORE DELETE ON "larder_hold"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_hold is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_hold_no_insert larder_hold
CREATE TRIGGER "larder_larder_hold_no_insert" BEFORE INSERT ON "larder_hold"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_hold is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_hold_no_update larder_hold
CREATE TRIGGER "larder_larder_hold_no_update" BEFORE UPDATE ON "larder_hold"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_hold is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_holder_no_delete larder_holder
CREATE TRIGGER "larder_larder_holder_no_delete" BEFORE DELETE ON "larder_holder"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_holder is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_holder_no_insert larder_holder
CREATE TRIGGER "larder_larder_holder_no_insert" BEFORE INSERT ON "larder_holder"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_holder is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_holder_no_update larder_holder
CREATE TRIGGER "larder_larder_holder_no_update" BEFORE UPDATE ON "larder_holder"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_holder is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_no_delete larder_map_page
CREATE TRIGGER "larder_larder_map_page_no_delete" BEFORE DELETE ON "larder_map_page"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_no_insert larder_map_page
CREATE TRIGGER "larder_larder_map_page_no_insert" BEFORE INSERT ON "larder_map_page"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_no_update larder_map_page
CREATE TRIGGER "larder_larder_map_page_no_update" BEFORE UPDATE ON "larder_map_page"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_use_no_delete larder_map_page_use
CREATE TRIGGER "larder_larder_map_page_use_no_delete" BEFORE DELETE ON "larder_map_page_use"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page_use is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_use_no_insert larder_map_page_use
CREATE TRIGGER "larder_larder_map_page_use_no_insert" BEFORE INSERT ON "larder_map_page_use"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page_use is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_map_page_use_no_update larder_map_page_use
CREATE TRIGGER "larder_larder_map_page_use_no_update" BEFORE UPDATE ON "larder_map_page_use"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_map_page_use is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_meta_no_delete larder_meta
CREATE TRIGGER "larder_larder_meta_no_delete" BEFORE DELETE ON "larder_meta"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_meta is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_meta_no_insert larder_meta
CREATE TRIGGER "larder_larder_meta_no_insert" BEFORE INSERT ON "larder_meta"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_meta is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_meta_no_update larder_meta
CREATE TRIGGER "larder_larder_meta_no_update" BEFORE UPDATE ON "larder_meta"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_meta is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_orphan_no_delete larder_orphan
CREATE TRIGGER "larder_larder_orphan_no_delete" BEFORE DELETE ON "larder_orphan"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_orphan is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_orphan_no_insert larder_orphan
CREATE TRIGGER "larder_larder_orphan_no_insert" BEFORE INSERT ON "larder_orphan"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_orphan is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_orphan_no_update larder_orphan
CREATE TRIGGER "larder_larder_orphan_no_update" BEFORE UPDATE ON "larder_orphan"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_orphan is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_piece_no_delete larder_piece
CREATE TRIGGER "larder_larder_piece_no_delete" BEFORE DELETE ON "larder_piece"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_piece is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_piece_no_insert larder_piece
CREATE TRIGGER "larder_larder_piece_no_insert" BEFORE INSERT ON "larder_piece"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_piece is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_piece_no_update larder_piece
CREATE TRIGGER "larder_larder_piece_no_update" BEFORE UPDATE ON "larder_piece"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_piece is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_pre_image_no_delete larder_pre_image
CREATE TRIGGER "larder_larder_pre_image_no_delete" BEFORE DELETE ON "larder_pre_image"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_pre_image is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_pre_image_no_insert larder_pre_image
CREATE TRIGGER "larder_larder_pre_image_no_insert" BEFORE INSERT ON "larder_pre_image"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_pre_image is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_pre_image_no_update larder_pre_image
CREATE TRIGGER "larder_larder_pre_image_no_update" BEFORE UPDATE ON "larder_pre_image"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_pre_image is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_redo_row_no_delete larder_redo_row
CREATE TRIGGER "larder_larder_redo_row_no_delete" BEFORE DELETE ON "larder_redo_row"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_redo_row is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_redo_row_no_insert larder_redo_row
CREATE TRIGGER "larder_larder_redo_row_no_insert" BEFORE INSERT ON "larder_redo_row"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_redo_row is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_redo_row_no_update larder_redo_row
CREATE TRIGGER "larder_larder_redo_row_no_update" BEFORE UPDATE ON "larder_redo_row"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_redo_row is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_seal_no_delete larder_seal
CREATE TRIGGER "larder_larder_seal_no_delete" BEFORE DELETE ON "larder_seal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_seal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_seal_no_insert larder_seal
CREATE TRIGGER "larder_larder_seal_no_insert" BEFORE INSERT ON "larder_seal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_seal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_seal_no_update larder_seal
CREATE TRIGGER "larder_larder_seal_no_update" BEFORE UPDATE ON "larder_seal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_seal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_sealed_no_delete larder_sealed
CREATE TRIGGER "larder_larder_sealed_no_delete" BEFORE DELETE ON "larder_sealed"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_sealed is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_sealed_no_insert larder_sealed
CREATE TRIGGER "larder_larder_sealed_no_insert" BEFORE INSERT ON "larder_sealed"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_sealed is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_sealed_no_update larder_sealed
CREATE TRIGGER "larder_larder_sealed_no_update" BEFORE UPDATE ON "larder_sealed"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_sealed is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_segment_no_delete larder_segment
CREATE TRIGGER "larder_larder_segment_no_delete" BEFORE DELETE ON "larder_segment"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_segment is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_segment_no_insert larder_segment
CREATE TRIGGER "larder_larder_segment_no_insert" BEFORE INSERT ON "larder_segment"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_segment is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_segment_no_update larder_segment
CREATE TRIGGER "larder_larder_segment_no_update" BEFORE UPDATE ON "larder_segment"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_segment is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_session_no_delete larder_session
CREATE TRIGGER "larder_larder_session_no_delete" BEFORE DELETE ON "larder_session"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_session is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_session_no_insert larder_session
CREATE TRIGGER "larder_larder_session_no_insert" BEFORE INSERT ON "larder_session"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_session is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_session_no_update larder_session
CREATE TRIGGER "larder_larder_session_no_update" BEFORE UPDATE ON "larder_session"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_session is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_shared_no_delete larder_shared
CREATE TRIGGER "larder_larder_shared_no_delete" BEFORE DELETE ON "larder_shared"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_shared is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_shared_no_insert larder_shared
CREATE TRIGGER "larder_larder_shared_no_insert" BEFORE INSERT ON "larder_shared"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_shared is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_shared_no_update larder_shared
CREATE TRIGGER "larder_larder_shared_no_update" BEFORE UPDATE ON "larder_shared"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_shared is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_snapshot_no_delete larder_snapshot
CREATE TRIGGER "larder_larder_snapshot_no_delete" BEFORE DELETE ON "larder_snapshot"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_snapshot is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_snapshot_no_insert larder_snapshot
CREATE TRIGGER "larder_larder_snapshot_no_insert" BEFORE INSERT ON "larder_snapshot"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_snapshot is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_snapshot_no_update larder_snapshot
CREATE TRIGGER "larder_larder_snapshot_no_update" BEFORE UPDATE ON "larder_snapshot"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_snapshot is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_store_no_delete larder_store
CREATE TRIGGER "larder_larder_store_no_delete" BEFORE DELETE ON "larder_store"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_store is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_store_no_insert larder_store
CREATE TRIGGER "larder_larder_store_no_insert" BEFORE INSERT ON "larder_store"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_store is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_store_no_update larder_store
CREATE TRIGGER "larder_larder_store_no_update" BEFORE UPDATE ON "larder_store"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_store is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_temporal_no_delete larder_temporal
CREATE TRIGGER "larder_larder_temporal_no_delete" BEFORE DELETE ON "larder_temporal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_temporal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_temporal_no_insert larder_temporal
CREATE TRIGGER "larder_larder_temporal_no_insert" BEFORE INSERT ON "larder_temporal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_temporal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_temporal_no_update larder_temporal
CREATE TRIGGER "larder_larder_temporal_no_update" BEFORE UPDATE ON "larder_temporal"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_temporal is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_transaction_no_delete larder_transaction
CREATE TRIGGER "larder_larder_transaction_no_delete" BEFORE DELETE ON "larder_transaction"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_transaction is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_transaction_no_insert larder_transaction
CREATE TRIGGER "larder_larder_transaction_no_insert" BEFORE INSERT ON "larder_transaction"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_transaction is kept by the engine; change files through the mount or the larder command');
END

--@ system trigger larder_larder_transaction_no_update larder_transaction
CREATE TRIGGER "larder_larder_transaction_no_update" BEFORE UPDATE ON "larder_transaction"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_transaction is kept by the engine; change files through the mount or the larder command');
END

--@ system table larder_map_page larder_map_page
CREATE TABLE larder_map_page (
  number INTEGER PRIMARY KEY CHECK (number >= 1),
  reference BLOB NOT NULL UNIQUE CHECK (length(reference) = 14),
  bytes BLOB NOT NULL CHECK (length(bytes) >= 32)
) STRICT

--@ system index larder_map_page_retired larder_map_page_use
CREATE INDEX larder_map_page_retired ON larder_map_page_use (retired_seq) WHERE retired_seq IS NOT NULL

--@ system table larder_map_page_use larder_map_page_use
CREATE TABLE larder_map_page_use (
  number INTEGER PRIMARY KEY CHECK (number >= 1),
  row_count INTEGER NOT NULL CHECK (row_count >= 0),
  retired_seq INTEGER CHECK (retired_seq >= 0),
  CONSTRAINT "what no row names is retired" CHECK ((row_count = 0) = (retired_seq IS NOT NULL))
) STRICT

--@ system table larder_meta larder_meta
CREATE TABLE larder_meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID

--@ system table larder_orphan larder_orphan
CREATE TABLE larder_orphan (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (store, ino)
) STRICT, WITHOUT ROWID

--@ system table larder_piece larder_piece
CREATE TABLE larder_piece (
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  entries BLOB NOT NULL CHECK (length(entries) > 0),
  since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (store, ino, page)
) STRICT, WITHOUT ROWID

--@ system table larder_pre_image larder_pre_image
CREATE TABLE larder_pre_image (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  until_seq INTEGER NOT NULL CHECK (until_seq >= 1),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  copy_segment INTEGER NOT NULL CHECK (copy_segment BETWEEN 0 AND 4294967295),
  copy_block INTEGER NOT NULL CHECK (copy_block >= 0),
  PRIMARY KEY (segment, start_block, until_seq)
) STRICT, WITHOUT ROWID

--@ system index larder_pre_image_until larder_pre_image
CREATE INDEX larder_pre_image_until ON larder_pre_image (until_seq)

--@ system table larder_redo_row larder_redo_row
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
) STRICT

--@ system index larder_redo_row_ino larder_redo_row
CREATE INDEX larder_redo_row_ino ON larder_redo_row (store, ino, block_count)

--@ system table larder_seal larder_seal
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
) STRICT

--@ system table larder_sealed larder_sealed
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
) STRICT

--@ system index larder_sealed_part larder_sealed
CREATE INDEX larder_sealed_part ON larder_sealed (seal, what, store, number)

--@ system table larder_segment larder_segment
CREATE TABLE larder_segment (
  segment INTEGER PRIMARY KEY CHECK (segment BETWEEN 0 AND 4294967295),
  block_count INTEGER NOT NULL CHECK (block_count >= 0)
) STRICT

--@ system table larder_session larder_session
CREATE TABLE larder_session (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  started_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0),
  epoch INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0)
) STRICT

--@ system table larder_shared larder_shared
CREATE TABLE larder_shared (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  PRIMARY KEY (segment, start_block, store, ino)
) STRICT, WITHOUT ROWID

--@ system table larder_snapshot larder_snapshot
CREATE TABLE larder_snapshot (
  name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE CHECK (name <> ''),
  seq INTEGER NOT NULL CHECK (seq >= 0),
  at_ns INTEGER NOT NULL,
  created_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID

--@ system index larder_snapshot_seq larder_snapshot
CREATE INDEX larder_snapshot_seq ON larder_snapshot (seq)

--@ system table larder_store larder_store
CREATE TABLE larder_store (
  id INTEGER PRIMARY KEY CHECK (id BETWEEN 0 AND 4294967295),
  name TEXT NOT NULL COLLATE NOCASE CONSTRAINT "store names are unique" UNIQUE,
  provider TEXT NOT NULL CHECK (provider <> ''),
  mount TEXT NOT NULL CONSTRAINT "store mounts are unique" UNIQUE
    CONSTRAINT "a mount begins with /" CHECK (mount LIKE '/%'),
  table_store INTEGER NOT NULL,
  next_ino INTEGER NOT NULL CHECK (next_ino >= 2),
  save_keeps TEXT NOT NULL DEFAULT 'columns' CHECK (save_keeps IN ('none', 'columns'))
) STRICT

--@ system table larder_temporal larder_temporal
CREATE TABLE larder_temporal (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL CHECK (name <> ''),
  since_seq INTEGER NOT NULL CHECK (since_seq >= 0),
  until_seq INTEGER
) STRICT

--@ system table larder_transaction larder_transaction
CREATE TABLE larder_transaction (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  begun_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0),
  bound INTEGER NOT NULL CHECK (bound IN (0, 1))
) STRICT

--@ system index sqlite_autoindex_larder_map_page_1 larder_map_page

--@ system index sqlite_autoindex_larder_store_1 larder_store

--@ system index sqlite_autoindex_larder_store_2 larder_store

--@ store table larderstorename larderstorename
CREATE TABLE "larderstorename" (
  ino INTEGER PRIMARY KEY CONSTRAINT "larderstorename.ino is 1 or more" CHECK (ino >= 1),
  kind TEXT NOT NULL CONSTRAINT "larderstorename.kind is a kind of file"
    CHECK (kind = 'file' OR kind = 'dir' OR kind = 'symlink' OR kind = 'fifo' OR kind = 'socket'
      OR kind = 'chardev' OR kind = 'blockdev'),
  mode INTEGER NOT NULL CONSTRAINT "larderstorename.mode is 0 to 4095 (octal 7777)"
    CHECK (typeof(mode) = 'integer' AND mode BETWEEN 0 AND 4095),
  uid INTEGER NOT NULL CONSTRAINT "larderstorename.uid is 0 to 4294967295"
    CHECK (typeof(uid) = 'integer' AND uid BETWEEN 0 AND 4294967295),
  gid INTEGER NOT NULL CONSTRAINT "larderstorename.gid is 0 to 4294967295"
    CHECK (typeof(gid) = 'integer' AND gid BETWEEN 0 AND 4294967295),
  nlink INTEGER NOT NULL CONSTRAINT "larderstorename.nlink is a count"
    CHECK (typeof(nlink) = 'integer' AND nlink BETWEEN 0 AND 4294967295),
  size INTEGER NOT NULL CONSTRAINT "larderstorename.size is a count of bytes"
    CHECK (typeof(size) = 'integer' AND size >= 0),
  blocks INTEGER NOT NULL CONSTRAINT "larderstorename.blocks is a count of blocks"
    CHECK (typeof(blocks) = 'integer' AND blocks >= 0),
  atime_ns INTEGER NOT NULL CONSTRAINT "larderstorename.atime_ns is whole nanoseconds"
    CHECK (typeof(atime_ns) = 'integer'),
  mtime_ns INTEGER NOT NULL CONSTRAINT "larderstorename.mtime_ns is whole nanoseconds"
    CHECK (typeof(mtime_ns) = 'integer'),
  ctime_ns INTEGER NOT NULL CONSTRAINT "larderstorename.ctime_ns is whole nanoseconds"
    CHECK (typeof(ctime_ns) = 'integer'),
  btime_ns INTEGER NOT NULL CONSTRAINT "larderstorename.btime_ns is whole nanoseconds"
    CHECK (typeof(btime_ns) = 'integer'),
  rdev INTEGER NOT NULL DEFAULT 0 CONSTRAINT "larderstorename.rdev is a device number"
    CHECK (typeof(rdev) = 'integer' AND rdev >= 0),
  since_seq INTEGER NOT NULL DEFAULT 0,
  first_ino INTEGER,
  file_id INTEGER GENERATED ALWAYS AS (coalesce(first_ino, ino)) VIRTUAL
)

--@ store index larder_larderstorename_saved larderstorename
CREATE INDEX "larder_larderstorename_saved" ON "larderstorename" (first_ino) WHERE first_ino IS NOT NULL

--@ store table larderstorename_dirent larderstorename_dirent
CREATE TABLE "larderstorename_dirent" (
  parent INTEGER NOT NULL CHECK (parent >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  ino INTEGER NOT NULL CHECK (ino >= 1), since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID

--@ store index larderstorename_dirent_ino larderstorename_dirent
CREATE INDEX "larderstorename_dirent_ino" ON "larderstorename_dirent" (ino)

--@ store table larderstorename_content larderstorename_content
CREATE TABLE "larderstorename_content" (
  ino INTEGER PRIMARY KEY CHECK (ino >= 1),
  inline BLOB CHECK (length(inline) <= 2048),
  target BLOB CHECK (length(target) BETWEEN 1 AND 4095), since_seq INTEGER NOT NULL DEFAULT 0, checksum INTEGER,
  CONSTRAINT "either inline or target" CHECK ((inline IS NULL) <> (target IS NULL))
) STRICT

--@ store table larderstorename_map larderstorename_map
CREATE TABLE "larderstorename_map" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  runs BLOB NOT NULL CHECK (length(runs) > 0), since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ino, page)
) STRICT, WITHOUT ROWID

--@ store table larderstorename_xattr larderstorename_xattr
CREATE TABLE "larderstorename_xattr" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  value BLOB NOT NULL, since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID

--@ store view larderstorename_path larderstorename_path
CREATE VIEW "larderstorename_path" (ino, parent, name, path) AS
SELECT inode.ino, leaf.parent, CAST(leaf.name AS TEXT), iif(inode.ino = 1, '/', (
  WITH RECURSIVE up (ino, path) AS (
    SELECT leaf.parent, '/' || CAST(leaf.name AS TEXT)
    UNION ALL
    SELECT step.parent, '/' || CAST(step.name AS TEXT) || up.path
      FROM up JOIN "larderstorename_dirent" AS step ON step.ino = up.ino
    LIMIT 32768)
  SELECT path FROM up WHERE ino = 1))
FROM "larderstorename" AS inode LEFT JOIN "larderstorename_dirent" AS leaf ON leaf.ino = inode.ino
WHERE leaf.ino IS NOT NULL OR inode.ino = 1

--@ store trigger larder_larderstorename_no_insert larderstorename
CREATE TRIGGER "larder_larderstorename_no_insert" BEFORE INSERT ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of larderstorename is a file; create it through the mount or the larder command');
END

--@ store trigger larder_larderstorename_no_delete larderstorename
CREATE TRIGGER "larder_larderstorename_no_delete" BEFORE DELETE ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of larderstorename is a file; delete it through the mount or the larder command');
END

--@ store trigger larder_larderstorename_guard larderstorename
CREATE TRIGGER "larder_larderstorename_guard" BEFORE UPDATE ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND (
  NEW.ino IS NOT OLD.ino OR NEW.kind IS NOT OLD.kind OR NEW.nlink IS NOT OLD.nlink
  OR NEW.size IS NOT OLD.size OR NEW.blocks IS NOT OLD.blocks
  OR NEW.btime_ns IS NOT OLD.btime_ns OR NEW.rdev IS NOT OLD.rdev OR NEW.first_ino IS NOT OLD.first_ino)
BEGIN
  SELECT RAISE(ABORT, 'ino, kind, nlink, size, blocks, btime_ns, rdev and first_ino of larderstorename are kept by the engine; change the file through the mount or the larder command');
END

--@ store trigger larder_larderstorename_since_guard larderstorename
CREATE TRIGGER "larder_larderstorename_since_guard" BEFORE UPDATE OF since_seq ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND NEW.since_seq IS NOT OLD.since_seq
  AND NEW.since_seq IS NOT 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  SELECT RAISE(ABORT, 'since_seq of larderstorename is kept by the engine; change the file through the mount or the larder command');
END

--@ store trigger larder_larderstorename_touch larderstorename
CREATE TRIGGER "larder_larderstorename_touch" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  UPDATE "larderstorename"
  SET ctime_ns = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000
  WHERE ino = NEW.ino;
END

--@ store trigger larder_larderstorename_keep larderstorename
CREATE TRIGGER "larder_larderstorename_keep" BEFORE UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND OLD.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  AND (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0
BEGIN
  INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value, kind, mode, uid, gid, nlink, size,
    blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev)
  SELECT 1 + meta.value, 'inode', 4294967291, OLD.ino, 0, OLD.since_seq, OLD.first_ino, OLD.kind, OLD.mode, OLD.uid, OLD.gid,
    OLD.nlink, OLD.size, OLD.blocks, OLD.atime_ns, OLD.mtime_ns, OLD.ctime_ns, OLD.btime_ns, OLD.rdev
  FROM larder_meta AS meta
  WHERE meta.key = 'commit_seq' AND NOT EXISTS (
    SELECT 1 FROM larder_history AS h WHERE h.store = 4294967291 AND h.ino = OLD.ino AND h.what = 'inode' AND h.key = 0
      AND h.until_seq = 1 + meta.value);
END

--@ store trigger larder_larderstorename_since larderstorename
CREATE TRIGGER "larder_larderstorename_since" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "larderstorename"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND NEW.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  UPDATE "larderstorename" SET since_seq = 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  WHERE ino = NEW.ino;
END

--@ store trigger larder_larderstorename_dirent_no_insert larderstorename_dirent
CREATE TRIGGER "larder_larderstorename_dirent_no_insert" BEFORE INSERT ON "larderstorename_dirent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_dirent is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_dirent_no_update larderstorename_dirent
CREATE TRIGGER "larder_larderstorename_dirent_no_update" BEFORE UPDATE ON "larderstorename_dirent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_dirent is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_dirent_no_delete larderstorename_dirent
CREATE TRIGGER "larder_larderstorename_dirent_no_delete" BEFORE DELETE ON "larderstorename_dirent"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_dirent is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_content_no_insert larderstorename_content
CREATE TRIGGER "larder_larderstorename_content_no_insert" BEFORE INSERT ON "larderstorename_content"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_content is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_content_no_update larderstorename_content
CREATE TRIGGER "larder_larderstorename_content_no_update" BEFORE UPDATE ON "larderstorename_content"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_content is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_content_no_delete larderstorename_content
CREATE TRIGGER "larder_larderstorename_content_no_delete" BEFORE DELETE ON "larderstorename_content"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_content is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_map_no_insert larderstorename_map
CREATE TRIGGER "larder_larderstorename_map_no_insert" BEFORE INSERT ON "larderstorename_map"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_map is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_map_no_update larderstorename_map
CREATE TRIGGER "larder_larderstorename_map_no_update" BEFORE UPDATE ON "larderstorename_map"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_map is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_map_no_delete larderstorename_map
CREATE TRIGGER "larder_larderstorename_map_no_delete" BEFORE DELETE ON "larderstorename_map"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_map is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_xattr_no_insert larderstorename_xattr
CREATE TRIGGER "larder_larderstorename_xattr_no_insert" BEFORE INSERT ON "larderstorename_xattr"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_xattr is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_xattr_no_update larderstorename_xattr
CREATE TRIGGER "larder_larderstorename_xattr_no_update" BEFORE UPDATE ON "larderstorename_xattr"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_xattr is kept by the engine; change files through the mount or the larder command');
END

--@ store trigger larder_larderstorename_xattr_no_delete larderstorename_xattr
CREATE TRIGGER "larder_larderstorename_xattr_no_delete" BEFORE DELETE ON "larderstorename_xattr"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larderstorename_xattr is kept by the engine; change files through the mount or the larder command');
END

--@ column ino INTEGER 1 0

--@ column kind TEXT 0 0

--@ column mode INTEGER 0 0

--@ column uid INTEGER 0 0

--@ column gid INTEGER 0 0

--@ column nlink INTEGER 0 0

--@ column size INTEGER 0 0

--@ column blocks INTEGER 0 0

--@ column atime_ns INTEGER 0 0

--@ column mtime_ns INTEGER 0 0

--@ column ctime_ns INTEGER 0 0

--@ column btime_ns INTEGER 0 0

--@ column rdev INTEGER 0 0

--@ column since_seq INTEGER 0 0

--@ column first_ino INTEGER 0 0

--@ column file_id INTEGER 0 2
