//! A host that has no more than the catalog's reserve: what makes the database longer is refused,
//! whichever way it comes, and what frees something is not (`HOST-1`).

use crate::common::moments::newest;
use crate::common::*;
use larder::{
    AllocateMode, CreateOptions, Database, DatabaseOptions, ErrorKind, FileHandle, Result,
    XattrMode,
};
use larder_object::EngineOptions;
use larder_testkit::SimStorage;
use std::sync::Arc;
use std::time::Duration;

/// Nothing is the reserve of a database.
const NOTHING: u64 = 1 << 20;
const PLENTY: u64 = 1 << 30;
/// Longer than a look at the host lasts.
const LOOKED_PAUSE: Duration = Duration::from_millis(25);

struct World {
    db: Database,
    storage: SimStorage,
    source: Box<dyn FileHandle>,
    file: Box<dyn FileHandle>,
    pieced: Box<dyn FileHandle>,
}

type Step = (&'static str, fn(&World) -> Result<()>);

/// Each adds content, a name or an attribute.
const REFUSED: [Step; 14] = [
    ("a new file", |w| write(w, "/new", b"x")),
    ("a new large file", |w| {
        write(w, "/new", &pattern(1 << 20, 1))
    }),
    ("a put over a small file", |w| write(w, "/small", b"y")),
    ("a put over a large file", |w| {
        write(w, "/file", &pattern(1 << 20, 2))
    }),
    ("a write", |w| w.file.write_at(0, b"yy")),
    ("an append", |w| w.file.append(b"yy").map(drop)),
    ("a write into inserted ranges", |w| {
        w.pieced.write_at(1, b"yy")
    }),
    ("an insertion", |w| w.file.insert_range(100, b"inserted")),
    ("an insertion of a hole", |w| {
        w.source.allocate(AllocateMode::InsertRange, 4096, 4096)
    }),
    ("an allocation", |w| {
        let mode = AllocateMode::Allocate { keep_size: false };
        w.file.allocate(mode, 1 << 20, 1 << 20)
    }),
    ("sharing", |w| {
        let source = w.source.content().expect("a file of the database");
        w.file.share_from(source, 0, 0, 1 << 20).map(drop)
    }),
    ("a directory", |w| w.db.files().create_dir(b"/d").map(drop)),
    ("a hard link", |w| {
        w.db.files().hard_link(b"/file", b"/link").map(drop)
    }),
    ("an attribute", |w| {
        let file = w.db.files().metadata("/file")?.node;
        (w.db.attributes()).set(file, b"user.a", b"1", XattrMode::Set)
    }),
];

/// Each frees something, or moves what is there.
const SERVED: [Step; 7] = [
    ("a read", |w| w.db.files().read(b"/file").map(drop)),
    ("a rename", |w| w.db.files().rename(b"/small", b"/moved")),
    ("a hole", |w| {
        w.file.allocate(AllocateMode::PunchHole, 0, 4096)
    }),
    ("a deletion of a range", |w| w.pieced.delete_range(0, 3)),
    ("a truncation", |w| w.file.set_len(10)),
    ("a put of nothing", |w| write(w, "/pieced", b"")),
    ("a removal", |w| w.db.files().remove_file(b"/file")),
];

fn write(world: &World, path: &str, bytes: &[u8]) -> Result<()> {
    world.db.files().write(path.as_bytes(), bytes).map(drop)
}

fn host(world: &World, bytes: u64) {
    world.storage.faults().limit_host(bytes);
    std::thread::sleep(LOOKED_PAUSE);
}

#[test]
fn a_host_without_room_refuses_what_adds_and_serves_what_frees() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let storage = SimStorage::new();
    storage.faults().limit_host(PLENTY);
    let engine = EngineOptions {
        storage: Some(Arc::new(storage.clone())),
        ..EngineOptions::default()
    };
    Database::create_with(&path, &CreateOptions::default(), &engine).unwrap();
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&path, options).unwrap();
    let open = |path: &str, size: usize| {
        db.files().write(path, pattern(size, 7)).unwrap();
        let node = db.files().metadata(path).unwrap().node;
        db.nodes().open(node, true).unwrap()
    };
    let world = World {
        source: open("/source", 1 << 20),
        file: open("/file", 1 << 20),
        pieced: open("/pieced", 1 << 20),
        storage,
        db: db.clone(),
    };
    world.pieced.insert_range(5, b"inserted").unwrap();
    db.files().write("/small", b"x").unwrap();
    db.files().write("/gone", pattern(1 << 20, 9)).unwrap();
    let then = newest(&db);
    db.files().remove_file("/gone").unwrap();
    db.sync().unwrap();
    host(&world, NOTHING);
    for (what, step) in REFUSED {
        let refused = step(&world).expect_err(what);
        assert_eq!(
            refused.kind(),
            ErrorKind::NoSpace,
            "HOST-1: {what}: {refused}"
        );
        assert!(
            refused.to_string().contains("kept for the catalog"),
            "{what}: {refused}"
        );
    }
    assert!(db.files().read("/file").unwrap() == pattern(1 << 20, 7));
    assert_eq!(db.files().read("/small").unwrap(), b"x");
    // What is shared with the past is not new.
    (db.history().rollback(&then, None, false)).unwrap();
    assert!(db.files().read("/gone").unwrap() == pattern(1 << 20, 9));
    for (what, step) in SERVED {
        step(&world).unwrap_or_else(|error| panic!("HOST-1: {what}: {error}"));
    }
    db.sync().unwrap();
    host(&world, PLENTY);
    assert_eq!(db.files().read("/moved").unwrap(), b"x");
    db.files().write("/file", pattern(1 << 20, 7)).unwrap();
    let file = db.files().metadata("/file").unwrap().node;
    let world = World {
        file: db.nodes().open(file, true).unwrap(),
        ..world
    };
    for (what, step) in REFUSED {
        step(&world).unwrap_or_else(|error| panic!("with room: {what}: {error}"));
    }
    drop((world.source, world.file, world.pieced));
    assert_clean(&db);
}
