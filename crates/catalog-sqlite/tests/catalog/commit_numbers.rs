//! Numbers of commits that never were: a check finds each, wherever it stands.

use crate::common::{MAIN, create, new_file, plain};
use larder_catalog_sqlite::format::Ino;
use larder_catalog_sqlite::{ChangeSet, Moment, SqliteCatalog};
use tempfile::TempDir;

/// A catalog of eight commits: a session that goes on and one that has ended, a snapshot, somebody
/// who reads the past, a list of pieces, a long transaction.
fn with_every_number() -> (TempDir, SqliteCatalog) {
    let (dir, catalog) = create();
    let (session, _) = catalog.sessions().begin((1, 0), "mount x", 1).unwrap();
    let (ended, _) = catalog.sessions().begin((2, 0), "put", 1).unwrap();
    for ino in 2..8 {
        catalog.commit(&new_file(ino, &format!("f{ino}"))).unwrap();
    }
    catalog.sessions().end(ended).unwrap();
    catalog.history().create_snapshot("s", 2_000).unwrap();
    catalog
        .past()
        .pin_past(session, &Moment::Seq(3), 2_000)
        .unwrap();
    let pieces = ChangeSet {
        piece_pages: vec![(MAIN, Ino(2), 0, Some(vec![1]))],
        ..ChangeSet::default()
    };
    catalog.commit(&pieces).unwrap();
    (dir, catalog)
}

#[test]
fn a_check_finds_numbers_of_commits_that_never_were() {
    let (dir, catalog) = with_every_number();
    assert_eq!(catalog.survey().check().unwrap(), [""; 0], "before");
    let newest: i64 = plain(dir.path())
        .query_row(
            "SELECT value FROM larder_meta WHERE key = 'commit_seq'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    // Each of them may be the newest commit, and none may be the next one.
    for (damage, of) in [
        (
            "UPDATE larder_piece SET since_seq = $N",
            "larder_piece: page 0 of inode 2",
        ),
        (
            "UPDATE larder_author SET since_seq = $N, until_seq = NULL",
            "larder_author: the beginning of session 1",
        ),
        (
            "UPDATE larder_author SET until_seq = $N",
            "larder_author: the end of session 2",
        ),
        (
            "UPDATE larder_meta SET value = $N WHERE key = 'history_begins_seq'",
            "larder_meta: history_begins_seq",
        ),
        (
            "INSERT OR REPLACE INTO larder_meta VALUES ('history_begins_seq:0', $N)",
            "larder_meta: history_begins_seq:0",
        ),
        (
            "UPDATE larder_session SET pin_seq = $N",
            "larder_session: what session 1 reads",
        ),
        ("UPDATE larder_as_of SET seq = $N", "larder_as_of: row 1"),
        (
            "INSERT OR REPLACE INTO larder_transaction VALUES (9, 1, 'x', 0, $N, 0)",
            "larder_transaction: what transaction 9 reads",
        ),
        (
            "INSERT OR REPLACE INTO larder_seal VALUES (1, 's', $N, 0, 0, zeroblob(32), \
             zeroblob(32), zeroblob(32), NULL, NULL, 0)",
            "larder_seal: link 1",
        ),
        (
            "INSERT OR REPLACE INTO larder_sealed VALUES (1, 1, 'store', 0, 0, $N, '', '', 0, \
             zeroblob(32), x'')",
            "larder_sealed: row 1",
        ),
    ] {
        let (dir, catalog) = with_every_number();
        for (number, is_found) in [
            (-1, true),
            (newest, false),
            (newest + 1, true),
            (i64::MAX, true),
        ] {
            let sql = damage.replace("$N", &number.to_string());
            // A constraint may keep out a negative one, and SQLite's own check tells of it then.
            plain(dir.path())
                .execute_batch(&format!(
                    "PRAGMA ignore_check_constraints = 1; UPDATE larder_guard_switch SET open = \
                    1; {sql}; \
                     UPDATE larder_guard_switch SET open = 0"
                ))
                .unwrap();
            let findings = catalog.survey().check().unwrap();
            let told = format!("{number}, which never was");
            let (table, _) = of.split_once(':').unwrap();
            let violated = format!("CHECK constraint failed in {table}");
            let names = |found: &String| {
                found.starts_with(of) && found.ends_with(&told) || found.contains(&violated)
            };
            assert_eq!(findings.iter().any(names), is_found, "{sql}: {findings:?}");
        }
    }
}

/// The number is that of a commit, and nobody may name its state.
#[test]
fn a_check_finds_snapshots_and_readers_of_steps_of_transactions() {
    let step = "DELETE FROM larder_history WHERE what = 'commit' AND until_seq = 4";
    for (damage, finding) in [
        (
            "UPDATE larder_snapshot SET seq = 4",
            "larder_snapshot: s is of commit 4, which was no whole one (HISTORY-3)",
        ),
        (
            "UPDATE larder_as_of SET seq = 4",
            "larder_as_of: row 1 is of commit 4, which was no whole one (HISTORY-3)",
        ),
    ] {
        for (is_step, expected) in [(false, vec![]), (true, vec![finding.to_owned()])] {
            let (dir, catalog) = with_every_number();
            let step = if is_step { step } else { "" };
            plain(dir.path())
                .execute_batch(&format!(
                    "UPDATE larder_guard_switch SET open = 1; {damage}; {step}; UPDATE \
                    larder_guard_switch SET \
                     open = 0"
                ))
                .unwrap();
            assert_eq!(
                catalog.survey().check().unwrap(),
                expected,
                "{damage}; {step}"
            );
        }
    }
}

#[test]
fn a_check_finds_a_session_that_ended_before_it_began() {
    let (dir, catalog) = with_every_number();
    plain(dir.path())
        .execute_batch(
            "UPDATE larder_guard_switch SET open = 1; UPDATE larder_author SET since_seq = 7, \
            until_seq = \
             6 WHERE session = 2; UPDATE larder_guard_switch SET open = 0",
        )
        .unwrap();
    assert_eq!(
        catalog.survey().check().unwrap(),
        ["larder_author: session 2 ended at commit 6, and began at 7"]
    );
}
