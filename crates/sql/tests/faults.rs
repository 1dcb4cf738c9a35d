//! What clients do that is not orderly: temporary tables in the way, triggers that roll back,
//! statements that are given up, tracers of their own, two connections in one thread. Nothing is
//! lost, and nobody waits for ever.

mod common;

use common::{Place, told};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// SQLite looks among the temporary tables first.
#[test]
fn what_is_temporary_does_not_stand_for_the_catalog() {
    let place = Place::new("temporary");
    place.script(
        "db.execute(\"SELECT write_content('/old', 'old')\").fetchall()\n\
         for name in ['main', 'Main_Dirent', 'larder_meta', 'larder_client']:\n\
         \x20   db.execute('CREATE TEMP TABLE %s AS SELECT 1 AS x' % name)\n\
         \x20   refused(\"SELECT write_content('/new', 'x')\", 'temp', name, 'DROP')\n\
         \x20   refused(\"SELECT content('/old')\", 'temp', name)\n\
         \x20   db.execute('BEGIN')\n\
         \x20   refused(\"SELECT write_content('/new', 'x')\", 'temp', name)\n\
         \x20   db.execute('COMMIT')\n\
         \x20   db.execute('DROP TABLE temp.' + name)\n\
         db.execute('CREATE TEMP TABLE mine(x)')\n\
         db.execute('CREATE TEMP VIEW larder_extent AS SELECT * FROM main.larder_extent')\n\
         refused(\"SELECT write_content('/new', 'x')\", 'temp', 'larder_extent')\n\
         db.execute('DROP VIEW temp.larder_extent')\n\
         # In its place by the time that it is written.\n\
         db.execute('BEGIN')\n\
         db.execute(\"SELECT write_content('/new', 'x')\").fetchall()\n\
         db.execute('CREATE TEMP TABLE other(x)')\n\
         assert ask(\"SELECT CAST(content('/new') AS TEXT)\") == 'x'\n\
         db.execute(\"SELECT write_content('/new2', 'x')\").fetchall()\n\
         db.execute('ALTER TABLE temp.other RENAME TO main')\n\
         db.execute(\"SELECT 1 FROM temp.sqlite_schema\").fetchall()\n\
         db.execute(\"INSERT INTO mine SELECT 1\")\n\
         refused(\"SELECT write_content('/new3', 'x')\", 'temp')\n\
         db.execute('ROLLBACK')\n",
    );
    assert_eq!(
        place.shell("SELECT path FROM files('/*') ORDER BY 1"),
        "/old\n",
        "CATALOG-12"
    );
    let shell = |sql: &str| {
        let output = place.run(&common::variable("LARDER"), &["sql", "t.larder", sql]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = shell(
        "CREATE TEMP TABLE main_dirent AS SELECT * FROM main.main_dirent; SELECT \
         write_content('/n', 'x')",
    );
    assert!(
        said.contains("temp") && said.contains("main_dirent"),
        "{said}"
    );
    place.check();
}

/// A table of that name would be written to, and nobody would be told of the commit.
#[test]
fn a_table_named_like_ours_does_not_take_its_place() {
    let place = Place::new("impostor");
    told(place.run(
        "sqlite3",
        &["t.larder/catalog.db", "CREATE TABLE larder_client(y)"],
    ));
    let said = place.refused("SELECT write_content('/f', 'x')");
    assert!(said.contains("larder_client"), "{said}");
    let other = Place::new("impostor-later");
    other.script(
        "db.execute('CREATE TABLE larder_client(y)')\n\
         refused(\"SELECT write_content('/f', 'x')\", 'larder_client', 'DROP')\n\
         db.execute('DROP TABLE larder_client')\n\
         db.execute(\"SELECT write_content('/f', 'x')\").fetchall()\n",
    );
    assert_eq!(other.shell("SELECT path FROM files('/*')"), "/f\n");
    other.check();
    assert_eq!(place.larder(&["ls", "t.larder:/"]), "");
    place.check();
}

const ROLLS_BACK: &str = "db.execute('CREATE TABLE n(x)')\n\
     db.execute(\"CREATE TRIGGER no BEFORE INSERT ON main WHEN NEW.size = 3 BEGIN SELECT \
     RAISE(ROLLBACK, 'not three'); END\")\n\
     def lost(then):\n\
     \x20   db.execute('BEGIN')\n\
     \x20   db.execute('INSERT INTO n VALUES (1)')\n\
     \x20   db.execute(\"SELECT write_content('/f', 'abc')\").fetchall()\n\
     \x20   told = 0\n\
     \x20   for sql in then:\n\
     \x20       try: db.execute(sql).fetchall()\n\
     \x20       except sqlite3.Error: told += 1; break\n\
     \x20   assert told == 1, then\n\
     \x20   if db.in_transaction: db.execute('ROLLBACK')\n\
     \x20   assert ask('SELECT count(*) FROM n') == 0, then\n";

/// SQLite rolls back by itself where a trigger says so: what follows is not committed alone.
#[test]
fn no_half_of_a_transaction_is_committed_when_sqlite_rolls_back() {
    let place = Place::new("rolled-back");
    place.script(&format!(
        "{ROLLS_BACK}\
         lost(['INSERT INTO n VALUES (2)', 'COMMIT'])\n\
         lost(['SELECT count(*) FROM n', 'INSERT INTO n VALUES (2)', 'COMMIT'])\n\
         lost(['SAVEPOINT s', 'INSERT INTO n VALUES (2)', 'RELEASE s', 'COMMIT'])\n\
         lost(['CREATE TABLE other(x)', 'COMMIT'])\n\
         lost(['COMMIT'])\n\
         lost([\"SELECT write_content('/g', 'abcd')\", 'COMMIT'])\n\
         # It was told; what comes then is another transaction.\n\
         db.execute('INSERT INTO n VALUES (3)')\n\
         db.execute('BEGIN')\n\
         db.execute(\"SELECT write_content('/g', 'abcd')\").fetchall()\n\
         db.execute('COMMIT')\n\
         assert ask('SELECT count(*) FROM n') == 1\n"
    ));
    assert_eq!(
        place.shell("SELECT path FROM files('/*')"),
        "/g\n",
        "CLIENT-5"
    );
    place.check();
}

/// While SQLite commits it keeps virtual tables locked.
#[test]
fn a_trigger_that_cannot_run_in_a_commit_is_told_at_once() {
    let place = Place::new("fts");
    place.script(
        "db.execute('CREATE VIRTUAL TABLE t USING fts5(x)')\n\
         db.execute(\"CREATE TRIGGER g AFTER INSERT ON main BEGIN INSERT INTO t VALUES ('n'); \
         END\")\n\
         signal.alarm(20)\n\
         refused(\"SELECT write_content('/a', 'x')\", 'BEGIN')\n\
         db.execute('BEGIN')\n\
         db.execute(\"SELECT write_content('/b', 'x')\").fetchall()\n\
         db.execute('COMMIT')\n\
         assert ask('SELECT count(*) FROM t') == 1\n",
    );
    assert_eq!(place.shell("SELECT path FROM files('/*')"), "/b\n");
    place.check();
}

/// A full catalog: SQLite may roll all of it back, and what is left must not be written statement
/// by statement.
#[test]
fn a_full_catalog_refuses_the_transaction_as_a_whole() {
    let place = Place::new("full-catalog");
    place.script(
        "signal.alarm(60)\n\
         db.execute('CREATE TABLE n(x)')\n\
         for free in range(0, 8):\n\
         \x20   pages = ask('PRAGMA page_count') + free\n\
         \x20   for begins in (True, False):\n\
         \x20       db.execute('PRAGMA max_page_count = %d' % pages).fetchall()\n\
         \x20       done = 0\n\
         \x20       try:\n\
         \x20           if begins: db.execute('BEGIN')\n\
         \x20           if begins: db.execute('INSERT INTO n VALUES (1)')\n\
         \x20           for k in range(40):\n\
         \x20               db.execute('SELECT write_content(?1, ?2)', ('/f%d' % k, b'x' * \
         2000)).fetchall()\n\
         \x20               if not begins: db.execute(\"SELECT write_content('/f%d', 'x')\" % \
         k).fetchall()\n\
         \x20           if begins: db.execute('INSERT INTO n VALUES (2)')\n\
         \x20           if begins: db.execute('COMMIT')\n\
         \x20           done = 1\n\
         \x20       except sqlite3.Error as error:\n\
         \x20           if begins: assert 'full' in str(error) or 'rolled' in str(error) or \
         'interrupted' in str(error), error\n\
         \x20       if db.in_transaction: db.execute('ROLLBACK')\n\
         \x20       db.execute('PRAGMA max_page_count = 1000000').fetchall()\n\
         \x20       assert ask('SELECT open FROM larder_guard_switch') == 0\n\
         \x20       assert ask('SELECT count(*) FROM n') == 0 or done and begins\n\
         \x20       db.execute('DELETE FROM n')\n",
    );
    place.check();
}

/// History shows whole transactions of a client, and all of each.
#[test]
fn a_transaction_of_a_client_is_one_moment() {
    let place = Place::new("moments");
    place.larder(&["init", "past.larder", "--retention", "1h"]);
    let script = "db.close()\n\
         db = sqlite3.connect('past.larder/catalog.db', isolation_level=None, timeout=30)\n\
         db.enable_load_extension(True)\n\
         db.execute(\"select load_extension('./larder')\")\n\
         moments = \"SELECT count(*) FROM larder_history WHERE what = 'commit'\"\n\
         before = ask(moments)\n\
         db.execute('BEGIN')\n\
         for k in range(3):\n\
         \x20   db.execute(\"SELECT write_content('/f%d', 'abc')\" % k).fetchall()\n\
         db.execute('UPDATE main SET mode = 416 WHERE size = 3')\n\
         db.execute('COMMIT')\n\
         assert ask(moments) == before + 1, ask(moments)\n\
         newest = \"SELECT max(until_seq) FROM larder_history\"\n\
         assert ask(newest) == ask(newest + \" WHERE what = 'commit'\")\n\
         db.execute('BEGIN')\n\
         db.execute(\"SELECT write_content('/f1', 'abcd')\").fetchall()\n\
         db.execute('UPDATE main SET mode = 384 WHERE size = 3')\n\
         db.execute(\"SELECT write_content('/f2', 'abcd')\").fetchall()\n\
         db.execute('UPDATE main SET mode = 384 WHERE size = 4')\n\
         db.execute('ROLLBACK')\n\
         db.execute('UPDATE main SET mode = 400 WHERE size = 3')\n\
         assert ask(moments) == before + 1, ask(moments)\n\
         db.execute(\"SELECT write_content('/alone', 'x')\").fetchall()\n\
         assert ask(moments) == before + 2, ask(moments)\n\
         assert ask(newest) == ask(newest + \" WHERE what = 'commit'\")\n\
         print(ask('SELECT value FROM larder_meta WHERE key = \\'commit_seq\\''))\n";
    let newest: u64 = place.script(script).trim().parse().unwrap();
    let mut counts = Vec::new();
    for seq in 0..=newest {
        let listed = place.larder(&["ls", &format!("past.larder@seq:{seq}:/")]);
        let count = listed.lines().count();
        if counts.last() != Some(&count) {
            counts.push(count);
        }
    }
    assert_eq!(counts, [0, 3, 4], "HISTORY-3: whole transactions");
    let check = place.larder(&["check", "past.larder", "--read"]);
    assert!(check.starts_with("clean"), "{check}");
}

/// Nobody else is there to give space back.
#[test]
fn what_clients_alone_overwrite_becomes_free_again() {
    let place = Place::new("reclaim");
    place.larder(&["init", "small.larder", "--capacity", "64M"]);
    let open = "db.close()\n\
         db = sqlite3.connect('small.larder/catalog.db', isolation_level=None, timeout=30)\n\
         db.enable_load_extension(True)\n\
         db.execute(\"select load_extension('./larder')\")\n";
    // Faster than the background looks, ...
    place.script(&format!(
        "{open}\
         for k in range(20):\n\
         \x20   db.execute('BEGIN')\n\
         \x20   db.execute(\"SELECT write_content('/f', randomblob(10000000))\").fetchall()\n\
         \x20   db.execute('COMMIT')\n"
    ));
    // ... outside of transactions, and in one process each.
    for _ in 0..12 {
        place.script(&format!(
            "{open}db.execute(\"SELECT write_content('/f', randomblob(10000000))\").fetchall()\n"
        ));
    }
    let check = place.larder(&["check", "small.larder", "--read"]);
    assert!(check.starts_with("clean"), "{check}");
}

/// A statement that is given up after a row pins nothing.
#[test]
fn a_statement_that_is_given_up_lets_go() {
    let place = Place::new("given-up");
    place.shell(
        "BEGIN IMMEDIATE; SELECT write_content('/f' || value, 'x') FROM \
        json_each('[1,2,3,4]'); COMMIT",
    );
    let mut child = place
        .python(
            "rows = db.execute(\"SELECT path FROM files('/*')\")\n\
             rows.fetchone()\n\
             rows.close()\n\
             print('read', flush=True)\nsys.stdin.readline()\n",
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "read\n");
    let begun = Instant::now();
    // Pins are moved where another session lives.
    let mut other = place.python("print('here', flush=True)\nsys.stdin.readline()\n");
    let mut other = other
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let behind = "SELECT count(*) FROM larder_session WHERE pin_seq < \
                  (SELECT value FROM larder_meta WHERE key = 'commit_seq') - 2 ORDER BY id LIMIT 1";
    for number in 0..5 {
        place.larder(&["mkdir", &format!("t.larder:/d{number}")]);
    }
    while told(place.run("sqlite3", &["t.larder/catalog.db", behind])) != "0\n" {
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "CLIENT-4: the pin stays"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    for child in [&mut child, &mut other] {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// The writer lock is then taken by `write_content` itself.
#[test]
fn a_program_may_have_a_tracer_of_its_own() {
    let place = Place::new("tracer");
    place.script(
        "db.set_trace_callback(lambda text: None)\n\
         db.execute(\"SELECT write_content('/a', 'A')\").fetchall()\n\
         assert ask(\"SELECT CAST(content('/a') AS TEXT)\") == 'A'\n\
         db.execute('CREATE TABLE n(x)')\n\
         db.execute(\"INSERT INTO n SELECT write_content('/b' || value, 'B') FROM \
         json_each('[1,2]')\")\n\
         db.execute('BEGIN IMMEDIATE')\n\
         db.execute(\"SELECT write_content('/c', 'C')\").fetchall()\n\
         db.execute(\"SELECT write_content('/d', 'D')\").fetchall()\n\
         db.execute('COMMIT')\n\
         db.execute('BEGIN IMMEDIATE')\n\
         db.execute(\"SELECT write_content('/e', 'E')\").fetchall()\n\
         db.execute('ROLLBACK')\n\
         db.execute('BEGIN IMMEDIATE')\n\
         refused(\"SELECT write_content('/no/such', 'E')\", 'no')\n\
         db.execute('COMMIT')\n\
         # Nobody is kept waiting.\n\
         assert os.system(os.environ['LARDER'] + ' mkdir t.larder:/dir') == 0\n",
    );
    let said = place.shell("SELECT path FROM files('/*') ORDER BY 1");
    assert_eq!(said, "/a\n/b1\n/b2\n/c\n/d\n/dir\n", "CLIENT-3");
    place.check();
}

/// Plain SQLite says that the database is locked; so it is here, and soon.
#[test]
fn two_connections_in_one_thread_do_not_wait_for_each_other() {
    let place = Place::new("two");
    place.script(
        "def connect(timeout, loads=True):\n\
         \x20   made = sqlite3.connect('t.larder/catalog.db', isolation_level=None, \
         timeout=timeout)\n\
         \x20   made.enable_load_extension(True)\n\
         \x20   if loads: made.execute(\"select load_extension('./larder')\")\n\
         \x20   return made\n\
         other = connect(1)\n\
         db.execute('BEGIN IMMEDIATE')\n\
         db.execute(\"SELECT write_content('/a', 'A')\").fetchall()\n\
         begun = time.time()\n\
         try: other.execute('BEGIN IMMEDIATE')\n\
         except sqlite3.OperationalError as error: assert 'locked' in str(error), error\n\
         else: raise AssertionError('locked')\n\
         assert time.time() - begun < 3, time.time() - begun\n\
         begun = time.time()\n\
         try: other.execute(\"SELECT write_content('/b', 'B')\").fetchall()\n\
         except sqlite3.OperationalError as error: pass\n\
         else: raise AssertionError('locked')\n\
         assert time.time() - begun < 3, time.time() - begun\n\
         third = connect(1, False)\n\
         begun = time.time()\n\
         try: third.execute(\"select load_extension('./larder')\")\n\
         except sqlite3.OperationalError as error: assert 'writer lock' in str(error), error\n\
         else: raise AssertionError('no writer lock')\n\
         assert time.time() - begun < 3, time.time() - begun\n\
         db.execute('COMMIT')\n\
         third.execute(\"select load_extension('./larder')\")\n\
         third.execute(\"SELECT write_content('/c', 'C')\").fetchall()\n\
         other.execute('BEGIN IMMEDIATE')\n\
         other.execute(\"SELECT write_content('/b', 'B')\").fetchall()\n\
         other.execute('COMMIT')\n",
    );
    let said = place.shell("SELECT path FROM files('/*') ORDER BY 1");
    assert_eq!(said, "/a\n/b\n/c\n", "CLIENT-3");
    place.check();
}

/// Calls SQLite as C programs do.
const C: &str = "import ctypes\n\
     db.close()\n\
     s = ctypes.CDLL('libsqlite3.so.0')\n\
     c = ctypes.c_void_p()\n\
     def text(): return ctypes.string_at(errmsg(c)).decode()\n\
     errmsg = s.sqlite3_errmsg\n\
     errmsg.restype = ctypes.c_void_p\n\
     def run(sql):\n\
     \x20   return s.sqlite3_exec(c, sql.encode(), None, None, None)\n\
     def prepare(sql):\n\
     \x20   made = ctypes.c_void_p()\n\
     \x20   assert s.sqlite3_prepare_v2(c, sql.encode(), -1, ctypes.byref(made), None) == 0, \
     text()\n\
     \x20   return made\n\
     def open():\n\
     \x20   assert s.sqlite3_open(b't.larder/catalog.db', ctypes.byref(c)) == 0\n\
     \x20   s.sqlite3_busy_timeout(c, 30000)\n\
     \x20   s.sqlite3_enable_load_extension(c, 1)\n\
     \x20   assert s.sqlite3_load_extension(c, b'./larder', None, None) == 0, text()\n\
     open()\n";

/// SQLite ends the part of virtual tables in a transaction, and then finds that it cannot close.
#[test]
fn a_close_that_is_refused_ends_no_transaction() {
    let place = Place::new("close");
    place.script(&format!(
        "{C}\
         assert run('CREATE TABLE n(x)') == 0\n\
         assert run('BEGIN') == 0\n\
         assert run(\"SELECT write_content('/a', randomblob(300000))\") == 0, text()\n\
         assert run('INSERT INTO n VALUES (1)') == 0\n\
         assert run(\"SELECT write_content('/b', 'B')\") == 0, text()\n\
         left = prepare('SELECT 1')\n\
         assert s.sqlite3_close(c) == 5\n\
         # Nobody else has the writer lock.\n\
         import fcntl\n\
         turn = os.open('t.larder/turn.lock', os.O_RDWR)\n\
         try: fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
         except BlockingIOError: pass\n\
         else: raise AssertionError('CLIENT-3: the writer lock is free')\n\
         os.close(turn)\n\
         s.sqlite3_finalize(left)\n\
         assert run('INSERT INTO n VALUES (2)') == 0, text()\n\
         assert run(\"SELECT write_content('/c', 'C')\") == 0, text()\n\
         assert run('COMMIT') == 0, text()\n\
         assert s.sqlite3_close(c) == 0\n\
         # What has failed stays so.\n\
         open()\n\
         assert run(\"CREATE TRIGGER no BEFORE INSERT ON main WHEN NEW.size = 3 BEGIN SELECT \
         RAISE(ABORT, 'not three'); END\") == 0\n\
         assert run('BEGIN') == 0\n\
         assert run('INSERT INTO n VALUES (3)') == 0\n\
         assert run(\"SELECT write_content('/f', 'abc')\") == 0, text()\n\
         assert run('INSERT INTO n VALUES (4)') == 0\n\
         left = prepare('SELECT 1')\n\
         assert s.sqlite3_close(c) == 5\n\
         s.sqlite3_finalize(left)\n\
         assert run('COMMIT') != 0, 'CLIENT-5'\n\
         run('ROLLBACK')\n\
         assert s.sqlite3_close(c) == 0\n"
    ));
    let said =
        place.shell("SELECT group_concat(x) FROM n; SELECT path FROM files('/*') ORDER BY 1");
    assert_eq!(said, "1,2\n/a\n/b\n/c\n", "CLIENT-5");
    place.check();
}

/// A child of `fork` has neither the threads nor the session.
#[test]
fn a_fork_leaves_the_parent_its_session() {
    let place = Place::new("fork");
    let begun = Instant::now();
    place.script(
        "db.execute(\"SELECT write_content('/a', 'A')\").fetchall()\n\
         child = os.fork()\n\
         if child == 0:\n\
         \x20   signal.alarm(20)\n\
         \x20   db.close()\n\
         \x20   os._exit(0)\n\
         assert os.waitpid(child, 0)[1] == 0, 'the child hangs'\n\
         db.execute(\"SELECT write_content('/b', 'B')\").fetchall()\n",
    );
    assert!(begun.elapsed() < Duration::from_secs(15));
    let said = place.shell("SELECT path FROM files('/*') ORDER BY 1");
    assert_eq!(said, "/a\n/b\n", "SESSION-1");
    place.check();
}

/// Loading it once more changes nothing, also after it has failed.
#[test]
fn it_may_be_loaded_again() {
    let place = Place::new("again");
    place.script(
        "db.execute(\"SELECT write_content('/a', 'A')\").fetchall()\n\
         db.load_extension('./larder')\n\
         db.execute('BEGIN')\n\
         db.execute(\"select load_extension('./larder')\")\n\
         db.execute(\"SELECT write_content('/b', 'B')\").fetchall()\n\
         assert ask(\"SELECT CAST(content('/b') AS TEXT)\") == 'B'\n\
         db.execute('COMMIT')\n\
         db.close()\n\
         db = sqlite3.connect('t.larder/catalog.db', isolation_level=None, timeout=30)\n\
         denied = []\n\
         def deny(action, first, second, *rest):\n\
         \x20   if first == 'larder_client': denied.append(1)\n\
         \x20   return sqlite3.SQLITE_DENY if first == 'larder_client' else sqlite3.SQLITE_OK\n\
         db.set_authorizer(deny)\n\
         db.enable_load_extension(True)\n\
         try: db.load_extension('./larder')\n\
         except sqlite3.OperationalError as error: pass\n\
         else: raise AssertionError('not refused')\n\
         assert denied\n\
         db.set_authorizer(None)\n\
         for k in range(50): db.execute('SELECT 1').fetchall()\n\
         db.load_extension('./larder')\n\
         db.execute(\"SELECT write_content('/c', 'C')\").fetchall()\n\
         db.close()\n",
    );
    let said = place.shell("SELECT path FROM files('/*') ORDER BY 1");
    assert_eq!(said, "/a\n/b\n/c\n");
    place.check();
}

/// A trigger may leave a row out without an error: then the change is refused, and not made without
/// it.
#[test]
fn a_trigger_that_ignores_a_row_refuses_the_file() {
    let place = Place::new("ignored");
    place.script(
        "db.execute('CREATE TABLE n(x)')\n\
         db.execute(\"CREATE TRIGGER no BEFORE INSERT ON main WHEN NEW.size = 3 BEGIN SELECT \
         RAISE(IGNORE); END\")\n\
         refused(\"SELECT write_content('/f', 'abc')\", 'IGNORE')\n\
         db.execute('BEGIN')\n\
         db.execute('INSERT INTO n VALUES (1)')\n\
         db.execute(\"SELECT write_content('/f', 'abc')\").fetchall()\n\
         refused('COMMIT', 'IGNORE')\n\
         assert ask('SELECT count(*) FROM n') == 0\n\
         db.execute(\"SELECT write_content('/g', 'abcd')\").fetchall()\n",
    );
    assert_eq!(
        place.shell("SELECT path FROM files('/*')"),
        "/g\n",
        "CLIENT-5"
    );
    place.check();
}
