//! What a review found.

use crate::common::*;
use larder::{Database, DatabaseOptions, NodeId};
use larder_object::EngineOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn open_small(dir: &std::path::Path) -> Database {
    let engine = EngineOptions {
        dirty_bytes_max: 2 << 20,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// WHOLE-2: what was kept of a store that is gone must not count for ever.
#[test]
fn a_destroyed_store_keeps_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(128 << 20)).close().unwrap();
    let db = open_small(dir.path());
    for round in 0..4 {
        let info = db
            .stores()
            .create(&format!("s{round}"), "files", None, None)
            .unwrap();
        let root = db
            .nodes()
            .resolve(info.mount.as_bytes(), true)
            .unwrap()
            .node;
        let handle = db.nodes().open(make(&db, root, "half"), true).unwrap();
        handle.write_at(0, &pattern(400_000, round)).unwrap();
        db.sync().unwrap();
        db.stores().destroy(&info.name).unwrap();
        drop(handle);
    }
    let handles: Vec<_> = (0..3)
        .map(|at| {
            let node = make(&db, NodeId::ROOT, &format!("f{at}"));
            db.nodes().open(node, true).unwrap()
        })
        .collect();
    for piece in 0..4 {
        for handle in &handles {
            handle
                .write_at(piece * 50_000, &pattern(50_000, piece))
                .unwrap();
        }
        db.sync().unwrap();
    }
    // Unequal lengths: soft regions alone do not make them whole.
    drop(handles);
    let stream_fragments = db.maintenance().frag().unwrap().fragments_per_object_max;
    let deadline = Instant::now() + Duration::from_secs(3);
    while db.maintenance().frag().unwrap().fragments_per_object_max > 1 {
        assert!(
            Instant::now() < deadline,
            "{stream_fragments} {:?}",
            db.maintenance().frag()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// PIECE-3: a replacement beside fragment operations, while commits write the file.
#[test]
fn a_replacement_beside_insertions_leaves_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(256 << 20)).close().unwrap();
    let db = open_small(dir.path());
    let node = put(&db, NodeId::ROOT, "f", &vec![1; 700_000]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, done) = (&db, &done);
        scope.spawn(move || {
            let mut round = 0u8;
            while !done.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                db.files()
                    .write(b"/f", vec![round; 300_000 + usize::from(round) * 4096])
                    .unwrap();
            }
        });
        scope.spawn(move || {
            let handle = db.nodes().open(node, true).unwrap();
            while !done.load(Ordering::Relaxed) {
                handle.insert_range(4096, &[7; 4096]).unwrap();
            }
        });
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                db.sync().unwrap();
            }
        });
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            let bytes = db.files().read(b"/f").unwrap();
            assert!(
                bytes
                    .chunks(4096)
                    .all(|block| block.iter().all(|&byte| byte == block[0]))
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_clean(&db);
}

/// Two sessions on one nearly full database, each with its own files against a model.
#[test]
fn two_sessions_keep_their_files() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    std::thread::scope(|scope| {
        for session in 0..2u64 {
            let dir = dir.path();
            scope.spawn(move || {
                let db = open_small(dir);
                let mut seed = 77 + session;
                let mut draw = move |below: u64| {
                    seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 33) % below
                };
                let mut models: Vec<Option<Vec<u8>>> = vec![None; 30];
                let until = Instant::now() + Duration::from_secs(4);
                let mut full = 0;
                while Instant::now() < until {
                    let at = draw(30) as usize;
                    let text = format!("s{session}_{at}");
                    let path = format!("/{text}");
                    let bytes = pattern(1 + draw(1_800_000) as usize, draw(1 << 30));
                    let outcome = match draw(10) {
                        0..=3 => db
                            .files()
                            .write(path.as_bytes(), &bytes)
                            .map(|_| Some(bytes)),
                        4..=6 if models[at].is_some() => {
                            // A stream that commits and other sessions' turns meet half written.
                            let node = db.nodes().resolve(path.as_bytes(), true).unwrap().node;
                            let handle = db.nodes().open(node, true).unwrap();
                            handle.set_len(0).unwrap();
                            let mut outcome = Ok(());
                            for (index, piece) in bytes.chunks(50_000).enumerate() {
                                let from = (index * 50_000) as u64;
                                if let Err(error) = handle.write_at(from, piece) {
                                    outcome = Err(error);
                                    break;
                                }
                                if draw(8) == 0 {
                                    std::thread::sleep(Duration::from_millis(draw(60)));
                                }
                            }
                            match outcome {
                                Ok(_) => Ok(Some(bytes)),
                                Err(error) => {
                                    models[at] = Some(content(&db, node));
                                    Err::<Option<Vec<u8>>, _>(error)
                                }
                            }
                        }
                        7 if models[at].is_some() => {
                            db.nodes().unlink(NodeId::ROOT, &name(&text)).map(|()| None)
                        }
                        _ => {
                            std::thread::sleep(Duration::from_millis(draw(20)));
                            Ok(models[at].clone())
                        }
                    };
                    match outcome {
                        Ok(model) => models[at] = model,
                        Err(error) => {
                            assert_eq!(error.kind(), larder::ErrorKind::NoSpace, "{error}");
                            full += 1;
                        }
                    }
                    let at = draw(30) as usize;
                    if let Some(model) = &models[at] {
                        let found = db
                            .files()
                            .read(format!("/s{session}_{at}").as_bytes())
                            .unwrap();
                        assert!(&found == model, "session {session} file {at}");
                    }
                }
                println!("session {session}: {full} times full");
                for (at, model) in models.iter().enumerate() {
                    if let Some(model) = model {
                        let found = db
                            .files()
                            .read(format!("/s{session}_{at}").as_bytes())
                            .unwrap();
                        assert!(&found == model, "session {session} file {at}");
                    }
                }
                db.close().unwrap();
            });
        }
    });
    assert_clean(&open(dir.path()));
}
