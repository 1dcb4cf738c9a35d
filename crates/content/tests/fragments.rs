//! Fragment operations through the Content API: against an array of bytes, in what they cost, and
//! seen by others.
#![allow(clippy::unwrap_used)] // All of it is a test.

use larder::{
    AllocateMode, Caller, CreateOptions, Database, FileHandle, Name, NewNode, NodeId, OpenOptions,
    SeekTarget, SqlValue,
};
use larder_object::EngineOptions;
use larder_testkit::{Rng, fill};
use std::path::Path;

const NAME: &[u8] = b"/file";

fn create(path: &Path, capacity_bytes: Option<u64>) -> Database {
    let options = CreateOptions {
        capacity_bytes,
        ..CreateOptions::default()
    };
    Database::create(path, &options).unwrap();
    open(path)
}

/// Open, with commits only where the test asks for them or memory does.
fn open(path: &Path) -> Database {
    let engine = EngineOptions {
        has_background: false,
        dirty_bytes_max: 4 << 20,
        ..EngineOptions::default()
    };
    Database::open(
        path,
        OpenOptions {
            engine,
            ..OpenOptions::default()
        },
    )
    .unwrap()
}

fn new_file(database: &Database) -> NodeId {
    let name = Name::new(&NAME[1..]).unwrap();
    let caller = Caller { uid: 1, gid: 1 };
    database
        .create_node(NodeId::ROOT, &name, NewNode::File, 0o644, caller)
        .unwrap()
        .node
}

fn node(database: &Database) -> NodeId {
    database.resolve(NAME, false).unwrap().node
}

fn read_all(file: &dyn FileHandle) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().unwrap().size_bytes as usize + 1];
    let mut len = 0;
    loop {
        match file.read_at(len as u64, &mut bytes[len..]).unwrap() {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    bytes
}

fn assert_clean(database: &Database) {
    let report = database.check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

/// Rows with pages of pieces, of all files; in what is committed.
fn piece_rows(database: &Database) -> i64 {
    let mut count = 0;
    let mut sql = database.sql(true).unwrap();
    sql.execute("SELECT count(*) FROM larder_piece", &mut |row| {
        if let SqlValue::Integer(rows) = row.values[0] {
            count = rows;
        }
        Ok(())
    })
    .unwrap();
    count
}

/// Some length: tiny ones, those about blocks, and some that make an object outgrow rewriting.
fn any_len(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 1 + rng.below(40),
        1 => 4090 + rng.below(12),
        2 => 4096 * (1 + rng.below(5)),
        3 => 1 + rng.below(150_000),
        _ => 1 + rng.below(9000),
    }
}

fn any_offset(rng: &mut Rng, below: u64) -> u64 {
    let offset = rng.below(below.max(1));
    if rng.chance(30) {
        offset & !4095
    } else {
        offset
    }
}

/// One step on file and model.
fn step(file: &dyn FileHandle, model: &mut Vec<u8>, rng: &mut Rng) -> String {
    let len_now = model.len() as u64;
    let offset = any_offset(rng, len_now + 1);
    let len = any_len(rng).min(len_now - offset);
    let at = offset as usize..(offset + len) as usize;
    match rng.below(14) {
        0..3 => {
            let data = fill(rng.bits(), any_len(rng));
            file.insert_range(offset, &data).unwrap();
            model.splice(at.start..at.start, data.iter().copied());
            format!("insert {} at {offset}", data.len())
        }
        3..5 => {
            file.delete_range(offset, len).unwrap();
            model.drain(at);
            format!("delete {len} at {offset}")
        }
        5..7 => {
            let to = any_offset(rng, len_now - len + 1);
            file.move_range(offset, len, to).unwrap();
            let moved: Vec<u8> = model.drain(at).collect();
            model.splice(to as usize..to as usize, moved);
            format!("move {len} from {offset} to {to}")
        }
        7 => {
            let data = fill(rng.bits(), any_len(rng));
            file.replace_range(offset, len, &data).unwrap();
            model.splice(at, data.iter().copied());
            format!("replace {len} at {offset} by {}", data.len())
        }
        8 => {
            let hole = any_len(rng);
            file.insert_hole(offset, hole).unwrap();
            model.splice(at.start..at.start, std::iter::repeat_n(0, hole as usize));
            format!("hole of {hole} at {offset}")
        }
        9 => {
            let offset = any_offset(rng, len_now + 20_000);
            let data = fill(rng.bits(), any_len(rng));
            file.write_at(offset, &data).unwrap();
            let end = offset as usize + data.len();
            model.resize(model.len().max(end), 0);
            model[offset as usize..end].copy_from_slice(&data);
            format!("write {} at {offset}", data.len())
        }
        10 => {
            let data = fill(rng.bits(), any_len(rng));
            assert_eq!(file.append(&data).unwrap(), len_now);
            model.extend(&data);
            format!("append {}", data.len())
        }
        11 => {
            let size = match rng.below(8) {
                0 => 0,
                1..4 => any_offset(rng, len_now + 30_000),
                _ => len_now - len_now.min(any_len(rng)),
            };
            file.set_len(size).unwrap();
            model.resize(size as usize, 0);
            format!("truncate to {size}")
        }
        12 => {
            file.allocate(AllocateMode::PunchHole, offset, len + 1)
                .unwrap();
            model[at.clone()].fill(0);
            if let Some(byte) = model.get_mut(at.end) {
                *byte = 0;
            }
            format!("punch {} at {offset}", len + 1)
        }
        _ => {
            let keep_size = rng.chance(50);
            let len = any_len(rng);
            let end = (offset + len) as usize;
            if rng.chance(50) {
                let mode = AllocateMode::Allocate { keep_size };
                file.allocate(mode, offset, len).unwrap();
            } else {
                let mode = AllocateMode::ZeroRange { keep_size };
                file.allocate(mode, offset, len).unwrap();
                let stop = end.min(model.len());
                model[offset as usize..stop].fill(0);
            }
            if !keep_size {
                model.resize(model.len().max(end), 0);
            }
            format!("allocate or zero {len} at {offset}")
        }
    }
}

/// What `seek` calls holes is zero, and all of the file is data or hole.
fn assert_seek(file: &dyn FileHandle, model: &[u8]) {
    let size = model.len() as u64;
    let mut at = 0;
    while at < size {
        let data = file.seek(SeekTarget::Data, at).unwrap().unwrap_or(size);
        assert!(
            model[at as usize..data as usize]
                .iter()
                .all(|&byte| byte == 0),
            "a hole at {at}..{data} that is none"
        );
        at = match file.seek(SeekTarget::Hole, data).unwrap() {
            Some(hole) => hole,
            None => size,
        };
        assert!(at > data || at == size, "no progress at {data}");
    }
}

fn run(seed: u64, steps: usize) -> i64 {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut database = create(&path, None);
    let mut file = database.open_file(new_file(&database), true).unwrap();
    let mut rng = Rng::new(seed);
    let mut model = Vec::new();
    let mut rows_max = 0;
    for index in 0..steps {
        let what = step(&*file, &mut model, &mut rng);
        if model.len() > 2_000_000 {
            file.delete_range(1000, 1_500_000).unwrap();
            model.drain(1000..1_501_000);
        }
        let found = read_all(&*file);
        if found != model {
            let at = found.iter().zip(&model).position(|(a, b)| a != b);
            panic!(
                "seed {seed}, step {index}, {what}: {} bytes, expected {}; first difference at {at:?}",
                found.len(),
                model.len()
            );
        }
        match rng.below(20) {
            0..4 => file.sync().unwrap(),
            4 => {
                assert_seek(&*file, &model);
                assert_clean(&database);
                let allocated = file.attr().unwrap().allocated_bytes;
                let most = 2 * model.len() as u64 + 4096;
                assert!(
                    allocated <= most,
                    "{allocated} bytes for {} (join)",
                    model.len()
                );
                rows_max = rows_max.max(piece_rows(&database));
            }
            5 => {
                drop(file);
                database.close().unwrap();
                database = open(&path);
                file = database.open_file(node(&database), true).unwrap();
            }
            _ => {}
        }
    }
    drop(file);
    let name = Name::new(&NAME[1..]).unwrap();
    database.unlink(NodeId::ROOT, &name).unwrap();
    database.sync().unwrap();
    assert_clean(&database);
    assert_eq!(piece_rows(&database), 0, "the list outlived its file");
    rows_max
}

#[test]
fn a_file_behaves_like_an_array() {
    let first = std::env::var("LARDER_FRAGMENT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let rows: i64 = (first..first + 6).map(|seed| run(seed, 250)).sum();
    assert!(rows > 6, "lists of pieces were hardly there: {rows}");
}
