//! Which stores may refuse a row by a rule of the user's.

use crate::common::{MAIN, create, plain};

#[test]
fn only_what_a_user_adds_makes_a_store_one_with_constraints() {
    let statements = [
        ("CREATE INDEX main_size ON main (size)", false),
        ("ALTER TABLE main ADD COLUMN note TEXT", false),
        (
            "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 0 AND 5)",
            true,
        ),
        (
            "CREATE TRIGGER mine BEFORE DELETE ON main BEGIN SELECT raise(ABORT, 'no'); END",
            true,
        ),
        ("CREATE UNIQUE INDEX one_of_a_size ON main (size)", true),
        ("CREATE INDEX of_names ON main_dirent (name)", false),
        ("CREATE UNIQUE INDEX one_name ON main_dirent (ino)", true),
        (
            "CREATE TRIGGER side BEFORE INSERT ON main_map BEGIN SELECT raise(IGNORE); END",
            true,
        ),
        (
            "CREATE TABLE album (ino INTEGER REFERENCES main (ino))",
            true,
        ),
    ];
    for (sql, expected) in statements {
        let (dir, catalog) = create();
        let is_constrained = || {
            catalog
                .rules()
                .constrained_stores()
                .unwrap()
                .contains(&MAIN)
        };
        assert!(!is_constrained(), "a new store");
        assert!(!catalog.rules().has_users_schema().unwrap(), "a new store");
        plain(dir.path()).execute_batch(sql).unwrap();
        assert_eq!(is_constrained(), expected, "{sql}");
        assert!(catalog.rules().has_users_schema().unwrap(), "{sql}");
    }
}
