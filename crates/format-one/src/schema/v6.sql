-- The change feed: what commits did, in order, for those who follow it (FEED-1).
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- Each change has a number of its own; a row holds those from seq - change_count + 1 to seq. Rows without a
-- gap, the last one always stays. 'begin' and 'end' say that the feed was switched on or off there; while
-- the newest row is 'end', or there is none, nothing is written. A 'commit' has the bytes of docs/format.md in
-- `changes`; the others are what plain SQL did to a row, written by triggers in its own transaction: `tbl` is
-- the table and `row_key` the rowid, or the primary key of a table without one.
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

-- Plain SQL may only append, and only what its own triggers say of rows.
CREATE TRIGGER larder_change_appends BEFORE INSERT ON larder_change
WHEN (SELECT open FROM larder_gate) IS NOT 1
  AND (NEW.seq > 0 OR NEW.change_count <> 1 OR NEW.op IN ('commit', 'begin', 'end'))
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;

CREATE TRIGGER larder_change_no_update BEFORE UPDATE ON larder_change
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;

CREATE TRIGGER larder_change_no_delete BEFORE DELETE ON larder_change
WHEN (SELECT open FROM larder_gate) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, 'larder_change is kept by the engine; see larder watch');
END;
