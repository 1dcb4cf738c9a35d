-- Clones share the pages of their extent maps.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

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

-- What number the next one gets: each is given once.
UPDATE larder_gate SET open = 1;
INSERT INTO larder_meta (key, value) VALUES ('next_map_page', 1);
UPDATE larder_gate SET open = 0;
