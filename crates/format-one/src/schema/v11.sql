-- What goes without a row of the history says so.
--
-- Frozen: a released step never changes; a later format adds a step (see schema.rs).

-- The newest commit that deleted redo rows without keeping them: their targets hold the same
-- content (FOREIGN-1).
UPDATE larder_gate SET open = 1;
INSERT INTO larder_meta (key, value) VALUES ('patches_gone_seq', 0);
UPDATE larder_gate SET open = 0;
