//! What history costs: microseconds per file to create, replace, change the mode, unlink, each in
//! groups, and durably one by one; with a retention of so many seconds.
//! `cargo run --release -p larder --example time_cost DIR [COUNT [SECONDS]]`

use larder::{Caller, CreateOptions, Database, DatabaseOptions, Name, NewNode, NodeId, SetAttr};
use std::path::PathBuf;
use std::time::Instant;

const OWNER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> Done {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: time_cost DIRECTORY [COUNT [SECONDS]]";
    let dir = PathBuf::from(arguments.next().ok_or(usage)?);
    let count: u64 = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let seconds: i64 = arguments.next().map_or(Ok(3600), |text| text.parse())?;
    let path = dir.join("time_cost.larder");
    let create = CreateOptions {
        retention_ns: Some(seconds * 1_000_000_000),
        capacity_bytes: Some(8 << 30),
        ..CreateOptions::default()
    };
    Database::create(&path, &create)?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    let mut directories: Vec<NodeId> = Vec::new();
    for index in 0..count.div_ceil(500) {
        let name = Name::new(format!("d{index}").as_bytes())?;
        let made =
            database
                .nodes()
                .create_node(NodeId::ROOT, &name, NewNode::Directory, 0o755, OWNER);
        directories.push(made?.node);
    }
    database.sync()?;
    let bytes = vec![7; 10_000];
    let path_of = |index: u64| format!("/d{}/f{index}", index / 500);
    let place = |index: u64| -> larder::Result<(NodeId, Name)> {
        database.nodes().resolve_parent(path_of(index).as_bytes())
    };
    let measure = |what: &str, count: u64, work: &dyn Fn(u64) -> larder::Result<()>| -> Done {
        let begun = Instant::now();
        (0..count).try_for_each(work)?;
        database.sync()?;
        let micros = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
        print!("{what} {micros:.2} ");
        Ok(())
    };
    let put = |index: u64| {
        database
            .files()
            .write(path_of(index).as_bytes(), &bytes)
            .map(drop)
    };
    measure("create", count, &put)?;
    measure("replace", count, &put)?;
    measure("chmod", count, &|index| {
        let (parent, name) = place(index)?;
        let change = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let node = database.nodes().lookup(parent, &name)?.node;
        database.nodes().set_attr(node, &change).map(drop)
    })?;
    measure("unlink", count, &|index| {
        let (parent, name) = place(index)?;
        database.nodes().unlink(parent, &name)
    })?;
    measure("durable-create", count / 20, &|index| {
        put(index)?;
        database.sync()
    })?;
    let node = database.nodes().resolve(path_of(0).as_bytes(), true)?.node;
    let handle = database.nodes().open(node, true)?;
    measure("durable-overwrite", count / 20, &|index| {
        handle.write_at(index % 2 * 4096, &bytes[..4096])?;
        handle.sync()
    })?;
    drop(handle);
    println!();
    database.close()?;
    std::fs::remove_dir_all(&path)?;
    Ok(())
}
