//! What POSIX and Linux promise beyond plain files and names: anonymous files, access control
//! lists, set-id bits, ranges that are inserted and taken out, copies, limits.

use crate::common::*;
use larder::{
    AllocateMode, COPY_BYTES_MAX, Caller, Database, ErrorKind, NewNode, NodeId, SeekTarget,
    SetAttr, XattrMode, copy_range, limits,
};
use std::time::{Duration, Instant};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// An access control list as Linux writes it: tags as in `acl(5)`, ids for `u` and `g` only.
fn acl(entries: &[(&str, u16)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (who, bits) in entries {
        let (tag, id) = match who.split_at(1) {
            ("U", _) => (0x01u16, u32::MAX),
            ("u", id) => (0x02, id.parse().unwrap()),
            ("G", _) => (0x04, u32::MAX),
            ("g", id) => (0x08, id.parse().unwrap()),
            ("M", _) => (0x10, u32::MAX),
            _ => (0x20, u32::MAX),
        };
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode_of(db: &Database, node: NodeId) -> u32 {
    db.nodes().metadata(node).unwrap().mode
}

fn chmod(db: &Database, node: NodeId, mode: u32) {
    let change = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    db.nodes().set_attr(node, &change).unwrap();
}

// ---- anonymous files ------------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Link,
    Unlink,
    Close,
}

/// Beside another session the background decides when what nobody holds goes.
fn wait_until(is_so: impl Fn() -> bool) {
    let patience = Instant::now();
    while !is_so() {
        assert!(patience.elapsed() < Duration::from_secs(10), "CONTENT-4");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the steps on one anonymous file, with a commit before step `i` where bit `i` is set.
fn live(db: &Database, steps: &[Step], commits: usize) {
    let (attr, handle) = db
        .nodes()
        .create_anonymous(NodeId::ROOT, 0o640, true, OWNER)
        .unwrap();
    assert_eq!(
        (attr.nlink, attr.uid, attr.gid, attr.mode),
        (0, 1, 2, 0o640)
    );
    let mut handle = Some(handle);
    let bytes = pattern(10_000, 1);
    handle.as_ref().unwrap().write_at(0, &bytes).unwrap();
    let mut is_named = false;
    for (index, step) in steps.iter().enumerate() {
        if commits >> index & 1 == 1 {
            db.sync().unwrap();
            assert_clean(db);
        }
        match step {
            Step::Link => {
                let attr = db
                    .nodes()
                    .link(attr.node, NodeId::ROOT, &name("named"))
                    .unwrap();
                assert_eq!(attr.nlink, 1);
                is_named = true;
            }
            Step::Unlink => {
                db.nodes().unlink(NodeId::ROOT, &name("named")).unwrap();
                is_named = false;
                if handle.is_some() {
                    // Only who never had a name may get a first one.
                    let again = db.nodes().link(attr.node, NodeId::ROOT, &name("again"));
                    assert_eq!(kind(again), ErrorKind::NotFound);
                }
            }
            Step::Close => handle = None,
        }
        let lives = is_named || handle.is_some();
        assert!(
            !lives || db.nodes().metadata(attr.node).is_ok(),
            "{steps:?} {commits:b}: CONTENT-4"
        );
        if is_named {
            assert!(content(db, attr.node) == bytes, "{steps:?} {commits:b}");
        }
    }
    drop(handle);
    db.sync().unwrap();
    assert_clean(db);
    wait_until(|| db.nodes().metadata(attr.node).is_ok() == is_named);
    if is_named {
        db.nodes().unlink(NodeId::ROOT, &name("named")).unwrap();
    }
}

#[test]
fn anonymous_files_live_while_they_are_open_or_named() {
    use Step::{Close, Link, Unlink};
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let lives: [&[Step]; 6] = [
        &[],
        &[Close],
        &[Link, Close],
        &[Link, Unlink, Close],
        &[Link, Close, Unlink],
        &[Link],
    ];
    for has_other in [false, true] {
        let other = has_other.then(|| open(dir.path()));
        for steps in lives {
            for commits in 0..1 << steps.len() {
                live(&db, steps, commits);
            }
        }
        if let Some(other) = other {
            other.close().unwrap();
        }
    }
    db.sync().unwrap();
    wait_until(|| db.maintenance().space().unwrap().inode_count == 1);
    let (attr, handle) = db
        .nodes()
        .create_anonymous(NodeId::ROOT, 0o600, false, OWNER)
        .unwrap();
    let refused = db.nodes().link(attr.node, NodeId::ROOT, &name("x"));
    assert_eq!(kind(refused), ErrorKind::NotFound);
    assert!(
        db.nodes()
            .read_dir(NodeId::ROOT, None, 10)
            .unwrap()
            .is_empty()
    );
    drop(handle);
    let file = make(&db, NodeId::ROOT, "f");
    let refused = db
        .nodes()
        .create_anonymous(file, 0o600, true, OWNER)
        .map(drop);
    assert_eq!(kind(refused), ErrorKind::NotADirectory);
    db.close().unwrap();
    assert_clean(&open(dir.path()));
}

// ---- access control lists -------------------------------------------------------------------

#[test]
fn an_access_list_and_the_mode_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let file = make(&db, NodeId::ROOT, "f");
    chmod(&db, file, 0o2640);
    let list = acl(&[("U", 7), ("u9", 6), ("G", 5), ("g3", 4), ("M", 6), ("O", 1)]);
    db.attributes()
        .set(file, ACCESS, &list, XattrMode::Set)
        .unwrap();
    assert_eq!(mode_of(&db, file), 0o2761, "ACL-1");
    assert_eq!(db.attributes().get(file, ACCESS).unwrap(), list);
    assert_eq!(db.attributes().list(file).unwrap(), [ACCESS.to_vec()]);
    // A chmod sets owner, mask and others; also one by SQL.
    chmod(&db, file, 0o504);
    let changed = acl(&[("U", 5), ("u9", 6), ("G", 5), ("g3", 4), ("M", 0), ("O", 4)]);
    assert_eq!(db.attributes().get(file, ACCESS).unwrap(), changed, "ACL-1");
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    let by_sql = format!("UPDATE main SET mode = 48 WHERE ino = {}", file.ino.0);
    sql.execute(&by_sql, &mut |_| Ok(())).unwrap();
    drop(sql);
    db.close().unwrap();
    let db = open(dir.path());
    let by_sql = acl(&[("U", 0), ("u9", 6), ("G", 5), ("g3", 4), ("M", 6), ("O", 0)]);
    assert_eq!(db.attributes().get(file, ACCESS).unwrap(), by_sql, "ACL-1");
    // A list that a mode can say is not kept.
    let minimal = acl(&[("U", 6), ("G", 4), ("O", 4)]);
    chmod(&db, file, 0o2600);
    db.attributes()
        .set(file, ACCESS, &minimal, XattrMode::SetDroppingSetgid)
        .unwrap();
    assert_eq!(mode_of(&db, file), 0o644, "ACL-2");
    assert_eq!(
        kind(db.attributes().get(file, ACCESS)),
        ErrorKind::NoAttribute,
        "ACL-2"
    );
    db.attributes()
        .set(file, ACCESS, &list, XattrMode::Set)
        .unwrap();
    db.attributes().remove(file, ACCESS).unwrap();
    db.attributes().remove(file, ACCESS).unwrap();
    assert_eq!(mode_of(&db, file), 0o761);
    assert!(db.attributes().list(file).unwrap().is_empty());
    // What is refused.
    let set =
        |node, name, value: &[u8]| kind(db.attributes().set(node, name, value, XattrMode::Set));
    let unordered = acl(&[("G", 5), ("U", 7), ("O", 1)]);
    assert_eq!(set(file, ACCESS, &unordered), ErrorKind::InvalidInput);
    assert_eq!(set(file, ACCESS, &[1, 0, 0, 0]), ErrorKind::Unsupported);
    assert_eq!(set(file, DEFAULT, &list), ErrorKind::NotPermitted);
    assert_eq!(set(file, b"system.other", b"x"), ErrorKind::Unsupported);
    let link = NewNode::Symlink(b"f");
    let link = db
        .nodes()
        .create_node(NodeId::ROOT, &name("l"), link, 0, OWNER)
        .unwrap();
    assert_eq!(set(link.node, ACCESS, &list), ErrorKind::Unsupported);
    assert_clean(&db);
}

#[test]
fn what_is_made_inherits_the_default_list() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let caller = Caller {
        umask: 0o077,
        ..OWNER
    };
    let make_in = |parent, text: &str, new, mode| {
        db.nodes()
            .create_node(parent, &name(text), new, mode, caller)
            .unwrap()
    };
    // Without a list the umask counts.
    let top = make_in(NodeId::ROOT, "d", NewNode::Directory, 0o777);
    assert_eq!(top.mode, 0o700);
    assert!(db.attributes().list(top.node).unwrap().is_empty());
    let list = acl(&[("U", 7), ("u9", 6), ("G", 5), ("M", 6), ("O", 4)]);
    db.attributes()
        .set(top.node, DEFAULT, &list, XattrMode::Set)
        .unwrap();
    assert_eq!(mode_of(&db, top.node), 0o700);
    for round in 0..2 {
        let text = |what: &str| format!("{what}{round}");
        let file = make_in(top.node, &text("f"), NewNode::File, 0o4666);
        assert_eq!(file.mode, 0o4664, "ACL-3");
        let expected = acl(&[("U", 6), ("u9", 6), ("G", 5), ("M", 6), ("O", 4)]);
        assert_eq!(
            db.attributes().get(file.node, ACCESS).unwrap(),
            expected,
            "ACL-3"
        );
        assert_eq!(
            kind(db.attributes().get(file.node, DEFAULT)),
            ErrorKind::NoAttribute
        );
        let fifo = make_in(top.node, &text("p"), NewNode::Fifo, 0o640);
        let expected = acl(&[("U", 6), ("u9", 6), ("G", 5), ("M", 4), ("O", 0)]);
        assert_eq!(
            (fifo.mode, db.attributes().get(fifo.node, ACCESS).unwrap()),
            (0o640, expected)
        );
        let below = make_in(top.node, &text("d"), NewNode::Directory, 0o777);
        assert_eq!(
            (below.mode, db.attributes().get(below.node, ACCESS).unwrap()),
            (0o764, list.clone())
        );
        assert_eq!(
            db.attributes().get(below.node, DEFAULT).unwrap(),
            list,
            "ACL-3"
        );
        let link = make_in(top.node, &text("l"), NewNode::Symlink(b"x"), 0);
        assert_eq!(link.mode, 0o777);
        assert!(db.attributes().list(link.node).unwrap().is_empty());
        let (attr, handle) = db
            .nodes()
            .create_anonymous(top.node, 0o600, true, caller)
            .unwrap();
        let expected = acl(&[("U", 6), ("u9", 6), ("G", 5), ("M", 0), ("O", 0)]);
        assert_eq!(
            (attr.mode, db.attributes().get(attr.node, ACCESS).unwrap()),
            (0o600, expected)
        );
        drop(handle);
        db.sync().unwrap();
    }
    // A minimal default list leaves nothing but a mode.
    let minimal = acl(&[("U", 6), ("G", 4), ("O", 4)]);
    db.attributes()
        .set(top.node, DEFAULT, &minimal, XattrMode::Set)
        .unwrap();
    let file = make_in(top.node, "m", NewNode::File, 0o666);
    assert_eq!(file.mode, 0o644, "ACL-3");
    assert!(db.attributes().list(file.node).unwrap().is_empty(), "ACL-2");
    db.attributes().remove(top.node, DEFAULT).unwrap();
    assert_eq!(make_in(top.node, "n", NewNode::File, 0o666).mode, 0o600);
    assert_clean(&db);
}

// ---- set-id bits and capabilities -----------------------------------------------------------

#[test]
fn a_new_owner_or_new_content_takes_privileges() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let file = put(&db, NodeId::ROOT, "f", b"#!");
    let directory = db
        .nodes()
        .create_node(NodeId::ROOT, &name("d"), NewNode::Directory, 0o6755, OWNER)
        .unwrap();
    let chown = |node, change: SetAttr| db.nodes().set_attr(node, &change).unwrap().mode;
    let to_nine = SetAttr {
        uid: Some(9),
        ..SetAttr::default()
    };
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o1777, 0o1777)] {
        chmod(&db, file, before);
        assert_eq!(chown(file, to_nine), after);
        chmod(&db, file, before);
        let dropping = SetAttr {
            drop_set_id: true,
            ..SetAttr::default()
        };
        assert_eq!(chown(file, dropping), after);
        chmod(&db, file, before);
        let handle = db.nodes().open(file, true).unwrap();
        assert_eq!(handle.drop_set_id().unwrap(), before != after);
        assert!(!handle.drop_set_id().unwrap());
        assert_eq!(mode_of(&db, file), after);
        let reader = db.nodes().open(file, false).unwrap();
        assert_eq!(kind(reader.drop_set_id()), ErrorKind::ReadOnly);
    }
    assert_eq!(chown(directory.node, to_nine), 0o6755);
    // Who restores a file sets owner and mode at once.
    let restored = SetAttr {
        mode: Some(0o6755),
        ..to_nine
    };
    assert_eq!(chown(file, restored), 0o6755);

    type Change = fn(&Database, NodeId, &dyn larder::FileHandle);
    let changes: [(&str, Change); 9] = [
        ("write", |_, _, handle| handle.write_at(0, b"x").unwrap()),
        ("append", |_, _, handle| {
            handle.append(b"x").unwrap();
        }),
        ("truncate", |_, _, handle| handle.set_len(1).unwrap()),
        ("allocate", |_, _, handle| {
            let mode = AllocateMode::Allocate { keep_size: true };
            handle.allocate(mode, 0, 10).unwrap();
        }),
        ("punch", |_, _, handle| {
            handle.allocate(AllocateMode::PunchHole, 0, 10).unwrap();
        }),
        ("insert", |_, _, handle| {
            handle.insert_range(0, b"x").unwrap()
        }),
        ("move", |_, _, handle| {
            handle.write_at(0, b"abc").unwrap();
            handle.move_range(0, 1, 2).unwrap();
        }),
        ("put", |db, _, _| {
            db.files().write(b"/f", b"new").unwrap();
        }),
        ("chown", |db, node, _| {
            let change = SetAttr {
                gid: Some(7),
                ..SetAttr::default()
            };
            db.nodes().set_attr(node, &change).unwrap();
        }),
    ];
    let mut db = db;
    for (what, change) in changes {
        for is_loaded in [true, false] {
            db.attributes()
                .set(file, CAPABILITY, b"rights", XattrMode::Set)
                .unwrap();
            db.attributes()
                .set(file, b"user.other", b"stays", XattrMode::Set)
                .unwrap();
            if !is_loaded {
                db.close().unwrap();
                db = open(dir.path());
            }
            let handle = db.nodes().open(file, true).unwrap();
            change(&db, file, &*handle);
            assert_eq!(
                db.attributes().list(file).unwrap(),
                [b"user.other"],
                "{what} {is_loaded}: EDIT-3"
            );
            drop(handle);
            db.close().unwrap();
            db = open(dir.path());
            assert_eq!(
                db.attributes().list(file).unwrap(),
                [b"user.other"],
                "{what} {is_loaded}: EDIT-3"
            );
        }
    }
    chmod(&db, file, 0o755);
    db.attributes()
        .set(file, CAPABILITY, b"rights", XattrMode::Set)
        .unwrap();
    chmod(&db, file, 0o700);
    assert!(
        db.attributes().get(file, CAPABILITY).is_ok(),
        "a chmod keeps it"
    );
    assert_clean(&db);
}

// ---- ranges ---------------------------------------------------------------------------------

#[test]
fn blocks_are_inserted_and_collapsed_where_linux_allows_it() {
    const BLOCK: u64 = limits::BLOCK_BYTES;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    for size in [BLOCK as usize * 10 + 5, 900_000] {
        let file = put(&db, NodeId::ROOT, &format!("f{size}"), &pattern(size, 3));
        let handle = db.nodes().open(file, true).unwrap();
        let mut model = pattern(size, 3);
        handle
            .allocate(AllocateMode::InsertRange, 2 * BLOCK, 3 * BLOCK)
            .unwrap();
        model.splice(
            2 * BLOCK as usize..2 * BLOCK as usize,
            vec![0; 3 * BLOCK as usize],
        );
        assert!(content(&db, file) == model);
        assert_eq!(handle.seek(SeekTarget::Hole, 0).unwrap(), Some(2 * BLOCK));
        handle
            .allocate(AllocateMode::CollapseRange, BLOCK, 5 * BLOCK)
            .unwrap();
        model.drain(BLOCK as usize..6 * BLOCK as usize);
        assert!(content(&db, file) == model);
        let end = model.len() as u64 / BLOCK * BLOCK;
        let refused = |mode, offset, len| kind(handle.allocate(mode, offset, len));
        for mode in [AllocateMode::InsertRange, AllocateMode::CollapseRange] {
            assert_eq!(refused(mode, 1, BLOCK), ErrorKind::InvalidInput);
            assert_eq!(refused(mode, 0, 1), ErrorKind::InvalidInput);
            assert_eq!(refused(mode, 0, 0), ErrorKind::InvalidInput);
            assert_eq!(refused(mode, end + BLOCK, BLOCK), ErrorKind::InvalidInput);
            let far = i64::MAX as u64 / BLOCK * BLOCK;
            assert_eq!(refused(mode, BLOCK, far), ErrorKind::FileTooLarge);
        }
        // A collapse that reaches the end would be a truncation; an insertion there an extension.
        assert_eq!(
            refused(AllocateMode::CollapseRange, end, BLOCK),
            ErrorKind::InvalidInput
        );
        handle.set_len(end).unwrap();
        assert_eq!(
            refused(AllocateMode::CollapseRange, end - BLOCK, BLOCK),
            ErrorKind::InvalidInput
        );
        assert_eq!(
            refused(AllocateMode::InsertRange, end, BLOCK),
            ErrorKind::InvalidInput
        );
        let most = (limits::FILE_BYTES_MAX - end) / BLOCK * BLOCK;
        assert_eq!(
            refused(AllocateMode::InsertRange, 0, most + BLOCK),
            ErrorKind::FileTooLarge
        );
        model.truncate(end as usize);
        assert!(content(&db, file) == model);
    }
    assert_clean(&db);
}

#[test]
fn copies_keep_holes_and_stop_where_they_must() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let source = make(&db, NodeId::ROOT, "source");
    let from = db.nodes().open(source, true).unwrap();
    let parts = [(0, 10_000), (1 << 30, 3 << 20), (5 << 30, 1)];
    for (index, (offset, len)) in parts.into_iter().enumerate() {
        from.write_at(offset, &pattern(len, index as u64)).unwrap();
    }
    from.set_len((5 << 30) + 12_345).unwrap();
    let size = from.metadata().unwrap().size_bytes;
    for (shift, is_synced) in [(0, false), (0, true), (4096 * 3, true), (777, true)] {
        if is_synced {
            db.sync().unwrap();
        }
        let text = format!("copy{shift}{is_synced}");
        // What is there already is covered by holes too.
        let target = put(&db, NodeId::ROOT, &text, &pattern(50_000, 9));
        let to = db.nodes().open(target, true).unwrap();
        let copied = copy_range((&*from, 0), (&*to, shift), u64::MAX).unwrap();
        assert_eq!(copied, size);
        assert_eq!(to.metadata().unwrap().size_bytes, size + shift);
        for (index, (offset, len)) in parts.into_iter().enumerate() {
            let mut bytes = vec![0; len + 30_000];
            let read = to.read_at(offset + shift, &mut bytes).unwrap();
            assert!(
                bytes[..len] == pattern(len, index as u64),
                "{text} {offset}"
            );
            assert!(
                bytes[len..read].iter().all(|&byte| byte == 0),
                "{text} {offset}"
            );
        }
        db.sync().unwrap();
        let held = db.nodes().metadata(target).unwrap().allocated_bytes;
        assert!(held < 4 << 20, "{text}: {held} bytes are held");
    }
    // Within one file, only apart.
    let inside =
        |from_offset, to_offset, len| copy_range((&*from, from_offset), (&*from, to_offset), len);
    assert_eq!(kind(inside(0, 1, 2)), ErrorKind::InvalidInput);
    assert_eq!(kind(inside(5, 5, 1)), ErrorKind::InvalidInput);
    assert_eq!(inside(0, 9_000, 1000).unwrap(), 1000);
    let mut bytes = vec![0; 10_000];
    from.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..9000] == pattern(10_000, 0)[..9000] && bytes[9000..] == bytes[..1000]);
    assert_eq!(inside(size, 0, 10).unwrap(), 0);
    // So much at a time; and only for who may write.
    let long = put(
        &db,
        NodeId::ROOT,
        "long",
        &pattern(COPY_BYTES_MAX as usize + 9, 4),
    );
    let long = db.nodes().open(long, false).unwrap();
    let to = db
        .nodes()
        .open(make(&db, NodeId::ROOT, "to"), true)
        .unwrap();
    // Blocks that do not fall on blocks are copied, others are shared.
    assert_eq!(
        copy_range((&*long, 0), (&*to, 1), u64::MAX).unwrap(),
        COPY_BYTES_MAX
    );
    let behind = COPY_BYTES_MAX + 1;
    assert_eq!(
        copy_range((&*long, COPY_BYTES_MAX), (&*to, behind), 100).unwrap(),
        9
    );
    assert_eq!(
        copy_range((&*long, 0), (&*to, 0), u64::MAX).unwrap(),
        COPY_BYTES_MAX + 9
    );
    assert_eq!(
        kind(copy_range((&*to, 0), (&*long, 500), 10)),
        ErrorKind::ReadOnly
    );
    drop((from, to, long));
    assert_clean(&db);
}

// ---- limits ---------------------------------------------------------------------------------

#[test]
fn attributes_have_names_in_namespaces_and_limits_as_in_linux() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let file = make(&db, NodeId::ROOT, "f");
    let set = |name: &[u8], value: &[u8]| db.attributes().set(file, name, value, XattrMode::Set);
    for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
        set(name, b"").unwrap();
        assert_eq!(db.attributes().get(file, name).unwrap(), b"");
        db.attributes().remove(file, name).unwrap();
        assert_eq!(
            kind(db.attributes().remove(file, name)),
            ErrorKind::NoAttribute
        );
    }
    for name in [&b"a"[..], b"system.a", b"other.a", b"USER.a"] {
        assert_eq!(kind(set(name, b"x")), ErrorKind::Unsupported);
    }
    for name in [&b""[..], b"user.", b"trusted.", b"security."] {
        assert_eq!(kind(set(name, b"x")), ErrorKind::InvalidInput);
    }
    set(b"user.large", &vec![7; limits::XATTR_VALUE_BYTES_MAX]).unwrap();
    let too_large = vec![7; limits::XATTR_VALUE_BYTES_MAX + 1];
    assert_eq!(kind(set(b"user.large", &too_large)), ErrorKind::TooBig);
    db.attributes().remove(file, b"user.large").unwrap();
    // A list of names is never longer than a caller can ask for.
    for index in 0..256 {
        set(format!("user.{index:0250}").as_bytes(), b"").unwrap();
    }
    assert_eq!(kind(set(b"user.one-more", b"")), ErrorKind::NoSpace);
    set(format!("user.{:0250}", 7).as_bytes(), b"changed").unwrap();
    let listed: usize = db
        .attributes()
        .list(file)
        .unwrap()
        .iter()
        .map(|name| name.len() + 1)
        .sum();
    assert_eq!(listed, limits::XATTR_LIST_BYTES_MAX);
    assert_clean(&db);
}
