//! PostgreSQL servers that run: absent, left in good order, told apart.

use crate::{HOW, MIB, can, request, site};
use larder_lab::backend::place::Place;
use larder_lab::backend::postgres::Cluster;
use larder_lab::backend::{Spec, Subject};
use larder_lab::error::Kind;
use larder_lab::run::Request;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;

#[test]
fn an_absent_server_is_told_with_an_offer() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    let spec = Spec::parse("postgres:postgresql://u:secret@127.0.0.1:1/x").unwrap();
    assert!(!spec.shown().contains("secret") && !spec.name.contains("secret"));
    let error = Subject::make(&spec, &site, 64 * MIB).err().unwrap();
    assert_eq!(error.kind, Kind::Cannot);
    assert!(
        error.text.contains("'postgres'") && !error.text.contains("secret"),
        "{error}"
    );
}

/// However a case ends, nothing of it stays on a server of somebody else's.
#[test]
fn nothing_stays_on_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    if !can(&site, "postgres") {
        return;
    }
    // It may be run by another user.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let [data, log, mounts] = ["data", "log", "mounts"].map(|name| directory.path().join(name));
    for path in [&data, &log] {
        fs::create_dir(path).unwrap();
    }
    let mut cluster = Cluster::create(&Place { data, log, mounts }, false).unwrap();
    let socket = directory.path().join("log/postgres");
    let address = format!("host={} user=lab dbname=postgres", socket.display());
    let left = || {
        let mut client = cluster.config().connect(postgres::NoTls).unwrap();
        let count = |client: &mut postgres::Client, sql: &str| -> i64 {
            client.query_one(sql, &[]).unwrap().get(0)
        };
        [
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'larder\\_lab%' AND relkind = 'r'",
            "SELECT count(*) FROM pg_largeobject_metadata",
        ]
        .map(|sql| count(&mut client, sql))
    };
    for (kind, expected) in [("postgres", [1, 0]), ("postgres-lo", [1, 3])] {
        let spec = Spec::parse(&format!("{kind}:{address}")).unwrap();
        assert_eq!(spec.name, format!("{kind}:server"));
        for is_ended in [false, true] {
            let subject = Subject::make(&spec, &site, 64 * MIB).unwrap();
            for key in 0..3 {
                subject.backend().put(key, &[7; 5000], &HOW).unwrap();
            }
            assert_eq!(left(), expected);
            match is_ended {
                true => subject.end().unwrap(),
                // An error, or ^C.
                false => drop(subject),
            }
            assert_eq!(left(), [0, 0], "{kind}");
        }
    }
    cluster.stop().unwrap();
}

#[test]
fn servers_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let spec = |address: &str| Spec::parse(&format!("postgres:{address}")).unwrap();
    let addresses = [
        "postgresql://u:secret@127.0.0.1:1/x",
        "postgresql://u:other@127.0.0.1:1/x",
        "host=127.0.0.1 port=2 user=u password=secret dbname=x",
    ];
    let mut specs: Vec<Spec> = addresses.iter().map(|address| spec(address)).collect();
    specs.insert(1, Spec::parse("dir:/srv").unwrap());
    Spec::number(&mut specs);
    let names: Vec<&str> = specs.iter().map(|spec| &*spec.name).collect();
    assert_eq!(
        names,
        [
            "postgres:server",
            "dir:/srv",
            "postgres:server-2",
            "postgres:server-3"
        ]
    );
    let (request, circumstances) = request(&directory);
    let of = |address: &str| Request {
        backends: vec![request.backends[0].clone(), spec(address)],
        rounds: 1,
        ..request.clone()
    };
    // Another password is the same server; another port is not.
    let [first, same, other] = addresses.map(|address| of(address).parameters());
    assert_eq!(first, same);
    assert_ne!(first, other);
    assert!(!format!("{first:?}").contains("secret"));
    assert!(!request.parameters().contains_key("servers"));
    let run = |address: &str| {
        let stop = AtomicBool::new(false);
        larder_lab::run::run(&of(address), &circumstances, &stop, &mut |_| {})
    };
    assert_eq!(run(addresses[0]).unwrap().measured, 1);
    assert_eq!(run(addresses[1]).unwrap().resumed, 1);
    let error = run(addresses[2]).unwrap_err();
    assert!(error.text.contains("--out"), "{error}");
}
