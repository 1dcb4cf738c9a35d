-- The tables of a store in format 2; `{name}` is its name (letters, digits and _), `{id}` its number.
-- The four side tables get the triggers of guard.sql as well.
--
-- Frozen since it was released: a later version adds a step (see schema.rs). In the side tables the last columns
-- stand where ALTER TABLE puts them: a database that was of format 1 has the same text.

-- One row per inode. Users add columns of their own, with indexes, constraints and triggers.
-- The attributes may be changed by plain SQL; the guards below refuse the rest. `since_seq` is the commit that
-- wrote the row. `first_ino` is the inode that the file had before it was saved the first time: a save makes it
-- another inode, and the same file. NULL: it is the first. An inode that gave its file away has the negative of
-- its own number, until it goes.
CREATE TABLE "{name}" (
  ino INTEGER PRIMARY KEY CONSTRAINT "{name}.ino is 1 or more" CHECK (ino >= 1),
  kind TEXT NOT NULL CONSTRAINT "{name}.kind is a kind of file"
    CHECK (kind = 'file' OR kind = 'dir' OR kind = 'symlink' OR kind = 'fifo' OR kind = 'socket'
      OR kind = 'chardev' OR kind = 'blockdev'),
  mode INTEGER NOT NULL CONSTRAINT "{name}.mode is 0 to 4095 (octal 7777)"
    CHECK (typeof(mode) = 'integer' AND mode BETWEEN 0 AND 4095),
  uid INTEGER NOT NULL CONSTRAINT "{name}.uid is 0 to 4294967295"
    CHECK (typeof(uid) = 'integer' AND uid BETWEEN 0 AND 4294967295),
  gid INTEGER NOT NULL CONSTRAINT "{name}.gid is 0 to 4294967295"
    CHECK (typeof(gid) = 'integer' AND gid BETWEEN 0 AND 4294967295),
  nlink INTEGER NOT NULL CONSTRAINT "{name}.nlink is a count"
    CHECK (typeof(nlink) = 'integer' AND nlink BETWEEN 0 AND 4294967295),
  size INTEGER NOT NULL CONSTRAINT "{name}.size is a count of bytes"
    CHECK (typeof(size) = 'integer' AND size >= 0),
  blocks INTEGER NOT NULL CONSTRAINT "{name}.blocks is a count of blocks"
    CHECK (typeof(blocks) = 'integer' AND blocks >= 0),
  atime_ns INTEGER NOT NULL CONSTRAINT "{name}.atime_ns is whole nanoseconds"
    CHECK (typeof(atime_ns) = 'integer'),
  mtime_ns INTEGER NOT NULL CONSTRAINT "{name}.mtime_ns is whole nanoseconds"
    CHECK (typeof(mtime_ns) = 'integer'),
  ctime_ns INTEGER NOT NULL CONSTRAINT "{name}.ctime_ns is whole nanoseconds"
    CHECK (typeof(ctime_ns) = 'integer'),
  btime_ns INTEGER NOT NULL CONSTRAINT "{name}.btime_ns is whole nanoseconds"
    CHECK (typeof(btime_ns) = 'integer'),
  rdev INTEGER NOT NULL DEFAULT 0 CONSTRAINT "{name}.rdev is a device number"
    CHECK (typeof(rdev) = 'integer' AND rdev >= 0),
  since_seq INTEGER NOT NULL DEFAULT 0,
  first_ino INTEGER,
  file_id INTEGER GENERATED ALWAYS AS (coalesce(first_ino, ino)) VIRTUAL
);

CREATE INDEX "larder_{name}_saved" ON "{name}" (first_ino) WHERE first_ino IS NOT NULL;

-- Directory entries. A name is TEXT when it is UTF-8, else BLOB; in the order of the key all TEXT
-- comes before all BLOB, and each is sorted by bytes.
CREATE TABLE "{name}_dirent" (
  parent INTEGER NOT NULL CHECK (parent >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  ino INTEGER NOT NULL CHECK (ino >= 1), since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX "{name}_dirent_ino" ON "{name}_dirent" (ino);

-- Tiny content, or the target of a symbolic link, and its checksum.
CREATE TABLE "{name}_content" (
  ino INTEGER PRIMARY KEY CHECK (ino >= 1),
  inline BLOB CHECK (length(inline) <= 2048),
  target BLOB CHECK (length(target) BETWEEN 1 AND 4095), since_seq INTEGER NOT NULL DEFAULT 0, checksum INTEGER,
  CONSTRAINT "either inline or target" CHECK ((inline IS NULL) <> (target IS NULL))
) STRICT;

-- Extent maps: one row for each 8 MiB of content that is not a hole; docs/format.md has the bytes.
CREATE TABLE "{name}_map" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  runs BLOB NOT NULL CHECK (length(runs) > 0), since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ino, page)
) STRICT, WITHOUT ROWID;

-- Extended attributes. Names are TEXT when they are UTF-8, else BLOB.
CREATE TABLE "{name}_xattr" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  value BLOB NOT NULL, since_seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID;
