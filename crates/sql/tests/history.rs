//! Clients and history: it makes way for what they write, and giving it up disturbs none of their transactions.

mod common;

use common::Place;

/// Connects to another database, whose path is `name`.
fn connect(name: &str) -> String {
    format!(
        "db.close()\n\
         db = sqlite3.connect('{name}/catalog.db', isolation_level=None, timeout=30)\n\
         db.enable_load_extension(True)\n\
         db.execute(\"select load_extension('./larder')\")\n\
         def write(path, mib):\n\
         \x20   db.execute('SELECT write_content(?1, randomblob(?2))', (path, int(mib * 1048576))).fetchall()\n"
    )
}

fn assert_clean(place: &Place, name: &str) {
    let check = place.larder(&["check", name, "--read"]);
    assert!(check.starts_with("clean"), "{check}");
}

#[test]
fn history_makes_way_where_nearly_all_is_in_use() {
    let place = Place::new("nearly-full");
    place.larder(&["init", "full.larder", "--capacity", "64M"]);
    let open = connect("full.larder");
    place.script(&format!(
        "{open}\
         for k in range(4): write('/live%d' % k, 14)\n\
         for k in range(8): write('/f', 1.5)\n\
         for k in range(8):\n\
         \x20   db.execute('BEGIN')\n\
         \x20   write('/f', 1.5)\n\
         \x20   db.execute('COMMIT')\n"
    ));
    // In one process each: nobody remembers that the last one was refused.
    for _ in 0..3 {
        place.script(&format!("{open}write('/f', 1.5)\n"));
    }
    assert_clean(&place, "full.larder");
}

#[test]
fn history_makes_way_for_a_large_file() {
    let place = Place::new("large");
    place.larder(&["init", "large.larder", "--capacity", "64M"]);
    let open = connect("large.larder");
    let fill = "for k in range(9): write('/f', 6)\n";
    place.script(&format!("{open}{fill}write('/large', 36)\n"));
    // In a transaction that has read nobody may give anything up; the next one finds the room.
    place.script(&format!(
        "{open}write('/large', 1)\n{fill}\
         def large():\n\
         \x20   db.execute('BEGIN')\n\
         \x20   ask('SELECT count(*) FROM main')\n\
         \x20   write('/large', 36)\n\
         \x20   db.execute('COMMIT')\n\
         try:\n\
         \x20   large()\n\
         \x20   raise AssertionError('nothing was in its way')\n\
         except sqlite3.Error:\n\
         \x20   db.execute('ROLLBACK')\n\
         db.execute('BEGIN IMMEDIATE')\n\
         write('/large', 36)\n\
         db.execute('COMMIT')\n"
    ));
    assert_clean(&place, "large.larder");
}

#[test]
fn clients_alone_do_not_fill_a_host_with_history() {
    let place = Place::new("host");
    let open = connect("t.larder");
    let said = place.script(&format!(
        "{open}\
         for k in range(40): write('/f', 16)\n\
         print(sum(os.path.getsize('t.larder/segments/' + name) for name in os.listdir('t.larder/segments')))\n"
    ));
    let bytes: u64 = said.trim().parse().unwrap();
    // What lives, as much of history, 256 MiB, and the step of growth.
    assert!(bytes < 450 << 20, "TIME-7: {bytes}");
    place.check();
}

/// A transaction that has read is not made old by what its own connection gives back.
#[test]
fn who_has_read_can_write_while_space_waits() {
    let place = Place::new("waits");
    place.larder(&[
        "init",
        "waits.larder",
        "--capacity",
        "64M",
        "--retention",
        "0",
    ]);
    let open = connect("waits.larder");
    place.script(&format!(
        "{open}\
         db.execute('CREATE TABLE n(x)')\n\
         for k in range(6):\n\
         \x20   for again in range(3): write('/f', 5)\n\
         \x20   db.execute('BEGIN')\n\
         \x20   ask('SELECT count(*) FROM main')\n\
         \x20   db.execute('INSERT INTO n VALUES (1)')\n\
         \x20   write('/small', 0.1)\n\
         \x20   db.execute('COMMIT')\n"
    ));
    assert_clean(&place, "waits.larder");
}
