-- What format version 12 adds to the tables of a store; `{name}` is its name, `{id}` its number.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- Which file a row is: the number of the inode that the file had first. A save makes it another inode, and the same file.
-- NULL: it is the first. An inode that gave its file away has the negative of its own number, until it goes.
ALTER TABLE "{name}" ADD COLUMN first_ino INTEGER;
ALTER TABLE "{name}" ADD COLUMN file_id INTEGER GENERATED ALWAYS AS (coalesce(first_ino, ino)) VIRTUAL;

CREATE INDEX "larder_{name}_saved" ON "{name}" (first_ino) WHERE first_ino IS NOT NULL;

DROP TRIGGER "larder_{name}_guard";
CREATE TRIGGER "larder_{name}_guard" BEFORE UPDATE ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1 AND (
  NEW.ino IS NOT OLD.ino OR NEW.kind IS NOT OLD.kind OR NEW.nlink IS NOT OLD.nlink
  OR NEW.size IS NOT OLD.size OR NEW.blocks IS NOT OLD.blocks
  OR NEW.btime_ns IS NOT OLD.btime_ns OR NEW.rdev IS NOT OLD.rdev OR NEW.first_ino IS NOT OLD.first_ino)
BEGIN
  SELECT RAISE(ABORT, 'ino, kind, nlink, size, blocks, btime_ns, rdev and first_ino of {name} are kept by the engine; change the file through the mount or the larder command');
END;

DROP TRIGGER "larder_{name}_keep";
CREATE TRIGGER "larder_{name}_keep" BEFORE UPDATE OF mode, uid, gid, atime_ns, mtime_ns, ctime_ns ON "{name}"
WHEN (SELECT open FROM larder_gate) IS NOT 1
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
