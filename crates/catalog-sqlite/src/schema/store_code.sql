-- The view and the guards of a store in format 2; `{name}` is its name, `{id}` its number.
--
-- Frozen since it was released: a later version adds a step (see schema.rs).

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
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of {name} is a file; create it through the mount or the larder command');
END;

CREATE TRIGGER "larder_{name}_no_delete" BEFORE DELETE ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'a row of {name} is a file; delete it through the mount or the larder command');
END;

-- Not OF some columns, since ino has other names, such as rowid.
CREATE TRIGGER "larder_{name}_guard" BEFORE UPDATE ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND (
  NEW.ino IS NOT OLD.ino OR NEW.kind IS NOT OLD.kind OR NEW.nlink IS NOT OLD.nlink
  OR NEW.size IS NOT OLD.size OR NEW.blocks IS NOT OLD.blocks
  OR NEW.btime_ns IS NOT OLD.btime_ns OR NEW.rdev IS NOT OLD.rdev OR NEW.first_ino IS NOT OLD.first_ino)
BEGIN
  SELECT RAISE(ABORT, 'ino, kind, nlink, size, blocks, btime_ns, rdev and first_ino of {name} are kept by the engine; change the file through the mount or the larder command');
END;

CREATE TRIGGER "larder_{name}_since_guard" BEFORE UPDATE OF since_seq ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 AND NEW.since_seq IS NOT OLD.since_seq
  AND NEW.since_seq IS NOT 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  SELECT RAISE(ABORT, 'since_seq of {name} is kept by the engine; change the file through the mount or the larder command');
END;

-- Plain SQL that changes an attribute is a chmod, chown or utimes, and moves ctime as they do.
CREATE TRIGGER "larder_{name}_touch" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  UPDATE "{name}"
  SET ctime_ns = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000
  WHERE ino = NEW.ino;
END;

-- Attributes that plain SQL changes count to the next commit: the row as it was is kept, once.
CREATE TRIGGER "larder_{name}_keep" BEFORE UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND OLD.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  AND (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0
BEGIN
  INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value, kind, mode, uid, gid, nlink, size,
    blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev)
  SELECT 1 + meta.value, 'inode', {id}, OLD.ino, 0, OLD.since_seq, OLD.first_ino, OLD.kind, OLD.mode, OLD.uid, OLD.gid,
    OLD.nlink, OLD.size, OLD.blocks, OLD.atime_ns, OLD.mtime_ns, OLD.ctime_ns, OLD.btime_ns, OLD.rdev
  FROM larder_meta AS meta
  WHERE meta.key = 'commit_seq' AND NOT EXISTS (
    SELECT 1 FROM larder_history AS h WHERE h.store = {id} AND h.ino = OLD.ino AND h.what = 'inode' AND h.key = 0
      AND h.until_seq = 1 + meta.value);
END;

CREATE TRIGGER "larder_{name}_since" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "{name}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
  AND NEW.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  UPDATE "{name}" SET since_seq = 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  WHERE ino = NEW.ino;
END;
