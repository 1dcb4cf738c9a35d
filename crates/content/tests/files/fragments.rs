//! Fragment operations through the Content API: against an array of bytes, in what they cost, and
//! seen by others.
use larder::{
    AllocateMode, Caller, CreateOptions, Database, DatabaseOptions, ErrorKind, FileHandle, Name,
    NewNode, NodeId, SeekTarget, SqlValue,
};
use larder_object::EngineOptions;
use larder_testkit::{Rng, fill};
use std::collections::{BTreeMap, BTreeSet};
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
        DatabaseOptions {
            engine,
            ..DatabaseOptions::default()
        },
    )
    .unwrap()
}

fn new_file(database: &Database) -> NodeId {
    let name = Name::new(&NAME[1..]).unwrap();
    let caller = Caller {
        uid: 1,
        gid: 1,
        umask: 0,
    };
    database
        .nodes()
        .create_node(NodeId::ROOT, &name, NewNode::File, 0o644, caller)
        .unwrap()
        .node
}

fn node(database: &Database) -> NodeId {
    database.nodes().resolve(NAME, false).unwrap().node
}

fn read_all(file: &dyn FileHandle) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().size_bytes as usize + 1];
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
    let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

/// Rows with pages of pieces, of all files; in what is committed.
fn piece_rows(database: &Database) -> i64 {
    let mut count = 0;
    let mut sql = database.sql().open(true).unwrap();
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
    let mut file = database.nodes().open(new_file(&database), true).unwrap();
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
                "seed {seed}, step {index}, {what}: {} bytes, expected {}; first difference at \
                 {at:?}",
                found.len(),
                model.len()
            );
        }
        match rng.below(20) {
            0..4 => file.sync().unwrap(),
            4 => {
                assert_seek(&*file, &model);
                assert_clean(&database);
                let allocated = file.metadata().unwrap().allocated_bytes;
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
                file = database.nodes().open(node(&database), true).unwrap();
            }
            _ => {}
        }
    }
    drop(file);
    let name = Name::new(&NAME[1..]).unwrap();
    database.nodes().unlink(NodeId::ROOT, &name).unwrap();
    database.sync().unwrap();
    assert_clean(&database);
    assert_eq!(piece_rows(&database), 0, "the list outlived its file");
    rows_max
}

#[test]
fn a_file_behaves_like_an_array() {
    let first = std::env::var("LARDER_FRAGMENT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let rows: i64 = (first..first + 6).map(|seed| run(seed, 250)).sum();
    assert!(rows > 3, "lists of pieces were hardly there: {rows}");
}

/// Long lists: many small edits of a file that stays large.
#[test]
fn a_file_with_many_pieces_behaves_like_an_array() {
    let directory = tempfile::tempdir().unwrap();
    let database = create(&directory.path().join("db"), None);
    let file = database.nodes().open(new_file(&database), true).unwrap();
    let mut rng = Rng::new(7);
    let mut model = fill(1, 3_000_000);
    file.write_at(0, &model).unwrap();
    for step in 0..700 {
        let offset = rng.below(model.len() as u64 - 6000);
        let len = 1 + rng.below(300);
        let at = offset as usize..(offset + len) as usize;
        match rng.below(4) {
            0 => {
                file.delete_range(offset, len).unwrap();
                model.drain(at);
            }
            1 => {
                let to = rng.below(model.len() as u64 - len);
                file.move_range(offset, len, to).unwrap();
                let moved: Vec<u8> = model.drain(at).collect();
                model.splice(to as usize..to as usize, moved);
            }
            2 => {
                let data = fill(rng.bits(), 5000);
                file.write_at(offset, &data).unwrap();
                model[at.start..at.start + 5000].copy_from_slice(&data);
            }
            _ => {
                let data = fill(rng.bits(), len);
                file.insert_range(offset, &data).unwrap();
                model.splice(at.start..at.start, data);
            }
        }
        if step % 40 == 0 {
            file.sync().unwrap();
            assert!(read_all(&*file) == model, "step {step}");
        }
    }
    database.sync().unwrap();
    assert!(read_all(&*file) == model);
    assert!(piece_rows(&database) > 5, "{}", piece_rows(&database));
    assert_seek(&*file, &model);
    assert_clean(&database);
    file.set_len(4000).unwrap();
    assert!(read_all(&*file) == model[..4000]);
    file.set_len(0).unwrap();
    file.append(b"new").unwrap();
    database.sync().unwrap();
    assert_eq!(piece_rows(&database), 0, "an empty file has no pieces");
    assert_eq!(read_all(&*file), b"new");
    assert_clean(&database);
}

/// Deleting all but a few bytes of each record leaves no block for each of them.
#[test]
fn what_is_left_of_records_is_joined() {
    let directory = tempfile::tempdir().unwrap();
    let database = create(&directory.path().join("db"), None);
    let file = database.nodes().open(new_file(&database), true).unwrap();
    let data = fill(4, 4_000_000);
    file.write_at(0, &data).unwrap();
    let mut model = Vec::new();
    for (index, record) in data.chunks(5000).take(700).enumerate() {
        let keep = 1 + index % 9;
        model.extend(&record[..keep]);
        let at = model.len() as u64;
        file.delete_range(at, 5000 - keep as u64).unwrap();
        if index % 100 == 0 {
            file.sync().unwrap();
        }
    }
    let kept = model.len();
    model.extend(&data[700 * 5000..]);
    assert!(read_all(&*file) == model);
    database.sync().unwrap();
    let most = 2 * model.len() as u64 + 4096;
    assert!(file.metadata().unwrap().allocated_bytes <= most);
    // The same from the other side: the ends of records stay.
    let mut at = kept as u64;
    for record in 0..90 {
        file.delete_range(at, 4990).unwrap();
        at += 10;
        assert_eq!(at, (kept + (record + 1) * 10) as u64);
    }
    let rest = model.split_off(kept);
    for record in rest.chunks(5000).take(90) {
        model.extend(&record[4990..]);
    }
    model.extend(&rest[90 * 5000..]);
    assert!(read_all(&*file) == model);
    database.sync().unwrap();
    let allocated = file.metadata().unwrap().allocated_bytes;
    assert!(allocated <= 2 * model.len() as u64 + 4096, "{allocated}");
    assert_clean(&database);
}

/// The rows of pieces and maps, to see which ones a commit wrote.
fn rows(database: &Database) -> BTreeMap<(String, i64), Vec<u8>> {
    let mut rows = BTreeMap::new();
    let text = "SELECT 'piece', page, entries FROM larder_piece \
                UNION ALL SELECT 'map', page, runs FROM main_map";
    let mut sql = database.sql().open(true).unwrap();
    sql.execute(text, &mut |row| {
        let [
            SqlValue::Text(table),
            SqlValue::Integer(page),
            SqlValue::Blob(bytes),
        ] = row.values.as_slice()
        else {
            panic!("{row:?}");
        };
        rows.insert((table.clone(), *page), bytes.clone());
        Ok(())
    })
    .unwrap();
    rows
}

/// How many rows of pieces and of maps are new, other or gone.
fn changed_rows(before: &BTreeMap<(String, i64), Vec<u8>>, database: &Database) -> (usize, usize) {
    let after = rows(database);
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = keys
        .into_iter()
        .filter(|key| before.get(*key) != after.get(*key));
    let (pieces, maps): (Vec<_>, Vec<_>) = changed.partition(|key| key.0 == "piece");
    (pieces.len(), maps.len())
}

/// What an edit in the middle costs does not depend on the size of the object, nor on the number of
/// its pieces.
#[test]
fn an_edit_in_the_middle_touches_few_pages() {
    const SIZE: u64 = 64 << 30;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut database = create(&path, None);
    let mut file = database.nodes().open(new_file(&database), true).unwrap();
    file.set_len(SIZE).unwrap();
    for at in (0..SIZE).step_by(1 << 30) {
        file.write_at(at, &fill(at, 20_000)).unwrap();
    }
    database.sync().unwrap();
    let allocated = file.metadata().unwrap().allocated_bytes;
    let before = rows(&database);
    assert_eq!(before.len(), 64);
    let data = fill(5, 10_001);
    file.insert_range((32 << 30) + 777, &data).unwrap();
    database.sync().unwrap();
    let (pieces, maps) = changed_rows(&before, &database);
    assert!(
        pieces == 1 && maps <= 2,
        "{pieces} + {maps} pages of 64 GiB"
    );
    let grown = file.metadata().unwrap().allocated_bytes - allocated;
    assert!(grown <= 5 * 4096, "{grown} bytes for {}", data.len());
    let mut found = vec![0; 778 + data.len()];
    file.read_at(32 << 30, &mut found).unwrap();
    let old = fill(32 << 30, 20_000);
    assert!(found[..777] == old[..777] && found[777..777 + data.len()] == data);
    assert_eq!(found[777 + data.len()], old[777]);

    // Each move of a block makes three pieces.
    let mut rng = Rng::new(3);
    let blocks = SIZE / 4096 - 10;
    for _ in 0..34_000 {
        let (from, to) = (rng.below(blocks), rng.below(blocks));
        file.move_range(from * 4096, 4096, to * 4096).unwrap();
    }
    drop(file);
    database.close().unwrap();
    database = open(&path);
    file = database.nodes().open(node(&database), true).unwrap();
    let before = rows(&database);
    assert!(before.len() > 1000, "{} pages", before.len());
    file.insert_range((32 << 30) + 12_345, b"in the middle")
        .unwrap();
    database.sync().unwrap();
    let (pieces, maps) = changed_rows(&before, &database);
    assert!(
        pieces <= 7 && maps <= 2,
        "{pieces} + {maps} pages of {}",
        before.len()
    );
    let mut found = [0; 13];
    file.read_at((32 << 30) + 12_345, &mut found).unwrap();
    assert_eq!(&found, b"in the middle");
    file.delete_range((32 << 30) + 12_345, 13).unwrap();
    database.sync().unwrap();
    let (pieces, maps) = changed_rows(&before, &database);
    assert!(pieces <= 7 && maps <= 2, "{pieces} + {maps} pages");
    assert_clean(&database);
}

#[test]
fn small_files_and_ends_need_no_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let database = create(&directory.path().join("db"), None);
    let file = database.nodes().open(new_file(&database), true).unwrap();
    file.insert_range(0, b"world").unwrap();
    file.insert_range(0, b"hello ").unwrap();
    file.sync().unwrap();
    file.replace_range(5, 1, b", ").unwrap();
    file.move_range(0, 7, 5).unwrap();
    assert_eq!(read_all(&*file), b"worldhello, ");
    file.sync().unwrap();
    assert_eq!(file.metadata().unwrap().allocated_bytes, 0, "it is inline");
    // Large, edited at the end only.
    let mut model = fill(2, 1_000_000);
    file.replace_range(0, 12, &model).unwrap();
    file.insert_range(1_000_000, b"tail").unwrap();
    file.delete_range(900_001, 100_003).unwrap();
    file.insert_hole(900_001, 99).unwrap();
    model.truncate(900_001);
    model.extend([0; 99]);
    assert!(read_all(&*file) == model);
    database.sync().unwrap();
    assert_eq!(piece_rows(&database), 0);
    // With pieces, and small again.
    file.insert_range(1, b"x").unwrap();
    model.insert(1, b'x');
    database.sync().unwrap();
    assert_eq!(piece_rows(&database), 1);
    file.delete_range(50_000, 840_000).unwrap();
    file.insert_range(3, b"y").unwrap();
    model.drain(50_000..890_000);
    model.insert(3, b'y');
    assert!(read_all(&*file) == model);
    database.sync().unwrap();
    assert_eq!(piece_rows(&database), 0, "rewritten");
    assert_clean(&database);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let database = create(&directory.path().join("db"), Some(16 << 20));
    let node = new_file(&database);
    let file = database.nodes().open(node, true).unwrap();
    file.write_at(0, &fill(1, 700_000)).unwrap();
    let kinds = |outcomes: Vec<larder::Result<()>>| -> Vec<ErrorKind> {
        let errors = outcomes.into_iter().map(|outcome| outcome.unwrap_err());
        errors.map(|error| error.kind()).collect()
    };
    let invalid = kinds(vec![
        file.insert_range(700_001, b"x"),
        file.delete_range(0, 700_001),
        file.delete_range(u64::MAX, 2),
        file.replace_range(699_999, 2, b"x"),
        file.move_range(0, 10, 699_991),
        file.move_range(u64::MAX, 10, 0),
    ]);
    assert_eq!(invalid, [ErrorKind::InvalidInput; 6]);
    let large = kinds(vec![file.insert_hole(5, i64::MAX as u64)]);
    assert_eq!(large, [ErrorKind::FileTooLarge]);
    file.insert_range(5, b"pieces").unwrap();
    let full = kinds(vec![file.insert_range(9, &fill(2, 20 << 20))]);
    assert_eq!(full, [ErrorKind::NoSpace]);
    let reader = database.nodes().open(node, false).unwrap();
    let refused = kinds(vec![
        reader.insert_range(0, b"x"),
        reader.insert_hole(0, 1),
        reader.delete_range(0, 1),
        reader.replace_range(0, 1, b"x"),
        reader.move_range(0, 1, 5),
    ]);
    assert_eq!(refused, [ErrorKind::ReadOnly; 5]);
    for nothing in [
        file.insert_range(3, b""),
        file.insert_hole(700_006, 0),
        file.delete_range(700_006, 0),
        file.move_range(7, 100, 7),
    ] {
        nothing.unwrap();
    }
    let mut model = fill(1, 700_000);
    model.splice(5..5, *b"pieces");
    assert!(
        read_all(&*file) == model,
        "a refused operation left a trace"
    );
    assert_clean(&database);
}

/// `PIECE-5`: another session reads one moment or another, never a mix.
#[test]
fn another_session_reads_whole_moments() {
    const RECORD: usize = 1000;
    const COUNT: usize = 1500;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    Database::create(&path, &CreateOptions::default()).unwrap();
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    let file = database.nodes().open(new_file(&database), true).unwrap();
    let bytes: Vec<u8> = (0..COUNT)
        .flat_map(|index| [(index % 251) as u8; RECORD])
        .collect();
    file.write_at(0, &bytes).unwrap();
    file.move_range(RECORD as u64, RECORD as u64, 0).unwrap();
    database.sync().unwrap();
    let other = Database::open(&path, DatabaseOptions::default()).unwrap();
    let reader = other.nodes().open(node(&other), false).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut buffer = vec![0; COUNT * RECORD + 1];
            let mut reads = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) || reads < 5 {
                let len = reader.read_at(0, &mut buffer).unwrap();
                assert_eq!(len, COUNT * RECORD);
                let mut counts = [0; 251];
                for record in buffer[..len].chunks(RECORD) {
                    assert!(
                        record.iter().all(|byte| *byte == record[0]),
                        "a torn record"
                    );
                    counts[record[0] as usize] += 1;
                }
                for (value, count) in counts.into_iter().enumerate() {
                    let expected = (COUNT - value).div_ceil(251);
                    assert_eq!(count, expected, "record {value}: a mix of moments");
                }
                reads += 1;
            }
            reads
        });
        let mut rng = Rng::new(9);
        for _ in 0..150 {
            let from = rng.below(COUNT as u64 - 1) * RECORD as u64;
            let to = rng.below(COUNT as u64 - 1) * RECORD as u64;
            file.move_range(from, RECORD as u64, to).unwrap();
            file.sync().unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        reading.join().unwrap()
    });
    assert!(reads >= 5);
    drop(reader);
    other.close().unwrap();
    assert_clean(&database);
}
