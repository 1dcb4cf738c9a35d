-- Format version 1: the system tables of a Larder catalog.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).
-- Times are nanoseconds since 1970 (UTC); blocks have 4096 bytes; an allocation group has 262144.

-- Facts of the whole database: database_id, capacity_bytes, retention_ns, created_ns, commit_seq,
-- retired_bytes_total, next_store, next_session.
CREATE TABLE larder_meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- The guard switch (CATALOG-3): the engine opens it inside its transactions and closes it before
-- COMMIT, so everybody else always finds it closed, and the guard triggers refuse them.
CREATE TABLE larder_gate (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  open INTEGER NOT NULL CHECK (open IN (0, 1))
) STRICT;

CREATE TABLE larder_store (
  id INTEGER PRIMARY KEY CHECK (id BETWEEN 0 AND 4294967295),
  name TEXT NOT NULL COLLATE NOCASE CONSTRAINT "store names are unique" UNIQUE,
  provider TEXT NOT NULL CHECK (provider <> ''),
  mount TEXT NOT NULL CONSTRAINT "store mounts are unique" UNIQUE
    CONSTRAINT "a mount begins with /" CHECK (mount LIKE '/%'),
  table_store INTEGER NOT NULL,
  next_ino INTEGER NOT NULL CHECK (next_ino >= 2)
) STRICT;

CREATE TABLE larder_segment (
  segment INTEGER PRIMARY KEY CHECK (segment BETWEEN 0 AND 4294967295),
  block_count INTEGER NOT NULL CHECK (block_count >= 0)
) STRICT;

-- The only truth of allocation (CATALOG-1): what no row covers is free.
CREATE TABLE larder_extent (
  segment INTEGER NOT NULL CHECK (segment BETWEEN 0 AND 4294967295),
  start_block INTEGER NOT NULL CHECK (start_block >= 0),
  block_count INTEGER NOT NULL CHECK (block_count >= 1),
  store INTEGER NOT NULL,
  ino INTEGER NOT NULL CHECK (ino >= 1),
  retired_seq INTEGER CHECK (retired_seq >= 1),
  PRIMARY KEY (segment, start_block),
  CONSTRAINT "an extent lies in one allocation group"
    CHECK (start_block / 262144 = (start_block + block_count - 1) / 262144)
) STRICT, WITHOUT ROWID;

CREATE INDEX larder_extent_retired ON larder_extent (retired_seq, block_count)
  WHERE retired_seq IS NOT NULL;

-- The newest commit that allocated, retired or reclaimed in each allocation group.
CREATE TABLE larder_ag (
  segment INTEGER NOT NULL,
  ag INTEGER NOT NULL CHECK (ag >= 0),
  changed_seq INTEGER NOT NULL,
  PRIMARY KEY (segment, ag)
) STRICT, WITHOUT ROWID;

CREATE TABLE larder_session (
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  label TEXT NOT NULL,
  started_ns INTEGER NOT NULL,
  pin_seq INTEGER NOT NULL CHECK (pin_seq >= 0)
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

INSERT INTO larder_gate (id, open) VALUES (1, 0);

CREATE TRIGGER larder_gate_stays BEFORE DELETE ON larder_gate
BEGIN
  SELECT RAISE(ABORT, 'larder_gate is kept by the engine; leave its row alone');
END;

CREATE TRIGGER larder_gate_is_one BEFORE INSERT ON larder_gate
BEGIN
  SELECT RAISE(ABORT, 'larder_gate is kept by the engine; leave its row alone');
END;
