-- Format version 2: each allocation group says how much of it is in use, so that a session need not
-- read all extent rows to know how much is free, and can read the rows of a group when it needs them.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- Derived from larder_extent in the same transaction, never the other way round; `check` compares
-- them. `used_blocks` counts the blocks of all rows of the group, `retired_blocks` of the retired ones.
ALTER TABLE larder_ag ADD COLUMN used_blocks INTEGER NOT NULL DEFAULT 0
  CHECK (used_blocks BETWEEN 0 AND 262144);
ALTER TABLE larder_ag ADD COLUMN retired_blocks INTEGER NOT NULL DEFAULT 0
  CHECK (retired_blocks BETWEEN 0 AND 262144);

UPDATE larder_gate SET open = 1;

INSERT INTO larder_ag (segment, ag, changed_seq, used_blocks, retired_blocks)
SELECT segment, start_block / 262144, (SELECT value FROM larder_meta WHERE key = 'commit_seq'),
  sum(block_count), coalesce(sum(block_count) FILTER (WHERE retired_seq IS NOT NULL), 0)
FROM larder_extent WHERE true GROUP BY segment, start_block / 262144
ON CONFLICT (segment, ag) DO UPDATE SET
  used_blocks = excluded.used_blocks, retired_blocks = excluded.retired_blocks;

UPDATE larder_gate SET open = 0;
