-- What format version 7 adds to the tables of a store; `{name}` is its name, `{id}` its number.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

ALTER TABLE "{name}" ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "{name}_dirent" ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "{name}_content" ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "{name}_map" ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "{name}_xattr" ADD COLUMN since_seq INTEGER NOT NULL DEFAULT 0;

-- As it is in new stores by now: not OF some columns, since ino has other names, such as rowid.
DROP TRIGGER "larder_{name}_guard";
CREATE TRIGGER "larder_{name}_guard" BEFORE UPDATE ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1 AND (
  NEW.ino IS NOT OLD.ino OR NEW.kind IS NOT OLD.kind OR NEW.nlink IS NOT OLD.nlink
  OR NEW.size IS NOT OLD.size OR NEW.blocks IS NOT OLD.blocks
  OR NEW.btime_ns IS NOT OLD.btime_ns OR NEW.rdev IS NOT OLD.rdev)
BEGIN
  SELECT RAISE(ABORT, 'ino, kind, nlink, size, blocks, btime_ns and rdev of {name} are kept by the engine; change the file through the mount or the larder command');
END;

CREATE TRIGGER "larder_{name}_since_guard" BEFORE UPDATE OF since_seq ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1 AND NEW.since_seq IS NOT OLD.since_seq
  AND NEW.since_seq IS NOT 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  SELECT RAISE(ABORT, 'since_seq of {name} is kept by the engine; change the file through the mount or the larder command');
END;

-- Attributes that plain SQL changes count to the next commit: the row as it was is kept, once.
CREATE TRIGGER "larder_{name}_keep" BEFORE UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
  AND OLD.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  AND (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0
BEGIN
  INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, kind, mode, uid, gid, nlink, size,
    blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev)
  SELECT 1 + meta.value, 'inode', {id}, OLD.ino, 0, OLD.since_seq, OLD.kind, OLD.mode, OLD.uid, OLD.gid, OLD.nlink,
    OLD.size, OLD.blocks, OLD.atime_ns, OLD.mtime_ns, OLD.ctime_ns, OLD.btime_ns, OLD.rdev
  FROM larder_meta AS meta
  WHERE meta.key = 'commit_seq' AND NOT EXISTS (
    SELECT 1 FROM larder_history AS h WHERE h.store = {id} AND h.ino = OLD.ino AND h.what = 'inode' AND h.key = 0
      AND h.until_seq = 1 + meta.value);
END;

CREATE TRIGGER "larder_{name}_since" AFTER UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
  AND NEW.since_seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
BEGIN
  UPDATE "{name}" SET since_seq = 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')
  WHERE ino = NEW.ino;
END;
