-- Full-text search over text files, kept in the same commit as the files. Run it with
--
--   larder mkdir photos.larder:/notes && larder sql photos.larder < fulltext.sql
--
-- The index has one row per file, whose rowid is the number of the inode: path(rowid) leads to the file, and
-- content(rowid) has the text.

CREATE VIRTUAL TABLE note_text USING fts5 (body, tokenize = 'porter unicode61');

-- One commit: the files are there with their rows in the index, for everybody and after every crash.
BEGIN;
SELECT 1 WHERE write_content('/notes/larder.txt', 'A larder is a cool place for food.') IS NULL
            OR write_content('/notes/sea.txt', 'In spring the sea cools the land.') IS NULL;
INSERT INTO note_text (rowid, body)
SELECT ino, CAST(content(ino) AS TEXT) FROM files('/notes/*.txt');
COMMIT;

-- Which files are about food, and where they say so.
SELECT path(rowid), snippet(note_text, 0, '[', ']', '', 5) FROM note_text WHERE note_text MATCH 'cool AND food';

-- Which files are about something cool, best first.
SELECT path(rowid) FROM note_text WHERE note_text MATCH 'cool' ORDER BY rank, rowid;

-- A file that changes: write it, and its row again.
BEGIN;
SELECT 1 WHERE write_content('/notes/sea.txt', 'The sea is warm.') IS NULL;
INSERT OR REPLACE INTO note_text (rowid, body)
SELECT ino, CAST(content(ino) AS TEXT) FROM files('/notes/sea.txt');
COMMIT;

-- Files that are in the index and gone: their rows go too.
DELETE FROM note_text WHERE path(rowid) IS NULL;
