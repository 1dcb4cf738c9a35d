-- The guard of one table that only the engine may change (CATALOG-3); `{table}` is its name.
-- Part of format 2.

CREATE TRIGGER "larder_{table}_no_insert" BEFORE INSERT ON "{table}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, '{table} is kept by the engine; change files through the mount or the larder command');
END;

CREATE TRIGGER "larder_{table}_no_update" BEFORE UPDATE ON "{table}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, '{table} is kept by the engine; change files through the mount or the larder command');
END;

CREATE TRIGGER "larder_{table}_no_delete" BEFORE DELETE ON "{table}"
WHEN (SELECT open FROM larder_guard_switch) IS NOT 1
BEGIN
  SELECT RAISE(ABORT, '{table} is kept by the engine; change files through the mount or the larder command');
END;
