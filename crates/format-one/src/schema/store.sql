-- The tables of one store; `{name}` is its name (letters, digits and _). Part of format version 1.
-- The four side tables get the triggers of guard.sql as well.

-- One row per inode. Users add columns of their own, with indexes, constraints and triggers.
-- The attributes may be changed by plain SQL; the guards below refuse the rest.
CREATE TABLE "{name}" (
  ino INTEGER PRIMARY KEY CONSTRAINT "{name}.ino is 1 or more" CHECK (ino >= 1),
  kind TEXT NOT NULL CONSTRAINT "{name}.kind is a kind of file"
    CHECK (kind IN ('file', 'dir', 'symlink', 'fifo', 'socket', 'chardev', 'blockdev')),
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
    CHECK (typeof(rdev) = 'integer' AND rdev >= 0)
);

-- Directory entries. A name is TEXT when it is UTF-8, else BLOB; in the order of the key all TEXT
-- comes before all BLOB, and each is sorted by bytes.
CREATE TABLE "{name}_dirent" (
  parent INTEGER NOT NULL CHECK (parent >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  ino INTEGER NOT NULL CHECK (ino >= 1),
  PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX "{name}_dirent_ino" ON "{name}_dirent" (ino);

-- Tiny content, or the target of a symbolic link.
CREATE TABLE "{name}_content" (
  ino INTEGER PRIMARY KEY CHECK (ino >= 1),
  inline BLOB CHECK (length(inline) <= 2048),
  target BLOB CHECK (length(target) BETWEEN 1 AND 4095),
  CONSTRAINT "either inline or target" CHECK ((inline IS NULL) <> (target IS NULL))
) STRICT;

-- Extent maps: one row for each 8 MiB of content that is not a hole; docs/format.md has the bytes.
CREATE TABLE "{name}_map" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  page INTEGER NOT NULL CHECK (page >= 0),
  runs BLOB NOT NULL CHECK (length(runs) > 0),
  PRIMARY KEY (ino, page)
) STRICT, WITHOUT ROWID;

-- Extended attributes. Names are TEXT when they are UTF-8, else BLOB.
CREATE TABLE "{name}_xattr" (
  ino INTEGER NOT NULL CHECK (ino >= 1),
  name ANY NOT NULL CHECK (typeof(name) IN ('text', 'blob') AND length(name) > 0),
  value BLOB NOT NULL,
  PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID;

-- Every name of every inode with its path, built from the leaf up, so that `WHERE ino = …` and a
-- join on ino cost only what they return. The root is `/`. Bytes that are not UTF-8 are kept.
-- The limit ends the walk in a damaged catalog whose directories form a ring.
CREATE VIEW "{name}_path" (ino, parent, name, path) AS
SELECT inode.ino, leaf.parent, CAST(leaf.name AS TEXT), iif(inode.ino = 1, '/', (
  WITH RECURSIVE up (ino, path) AS (
    SELECT leaf.parent, '/' || CAST(leaf.name AS TEXT)
    UNION ALL
    SELECT step.parent, '/' || CAST(step.name AS TEXT) || up.path
      FROM up JOIN "{name}_dirent" AS step ON step.ino = up.ino
    LIMIT 32768)
  SELECT path FROM up WHERE ino = 1))
FROM "{name}" AS inode LEFT JOIN "{name}_dirent" AS leaf ON leaf.ino = inode.ino
WHERE leaf.ino IS NOT NULL OR inode.ino = 1;

CREATE TRIGGER "larder_{name}_no_insert" BEFORE INSERT ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of {name} is a file; create it through the mount or the larder command');
END;

CREATE TRIGGER "larder_{name}_no_delete" BEFORE DELETE ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of {name} is a file; delete it through the mount or the larder command');
END;

CREATE TRIGGER "larder_{name}_guard" BEFORE UPDATE OF
  ino, kind, nlink, size, blocks, btime_ns, rdev ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1 AND (
  NEW.ino IS NOT OLD.ino OR NEW.kind IS NOT OLD.kind OR NEW.nlink IS NOT OLD.nlink
  OR NEW.size IS NOT OLD.size OR NEW.blocks IS NOT OLD.blocks
  OR NEW.btime_ns IS NOT OLD.btime_ns OR NEW.rdev IS NOT OLD.rdev)
BEGIN
  SELECT RAISE(ABORT, 'ino, kind, nlink, size, blocks, btime_ns and rdev of {name} are kept by the engine; change the file through the mount or the larder command');
END;

-- Plain SQL that changes an attribute is a chmod, chown or utimes, and moves ctime as they do.
CREATE TRIGGER "larder_{name}_touch" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  UPDATE "{name}"
  SET ctime_ns = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000
  WHERE ino = NEW.ino;
END;
