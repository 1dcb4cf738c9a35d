//! The experiments beside aging, in miniature.

use crate::{MIB, can, request, site};
use larder_lab::backend::Spec;
use larder_lab::run::{Circumstances, Experiment, Request};
use larder_lab::workload::trace::{self, Op};
use std::fs;
use std::sync::atomic::AtomicBool;

#[test]
fn the_other_experiments_measure() {
    let directory = tempfile::tempdir().unwrap();
    let (base, circumstances) = request(&directory);
    let run = |request: &Request, name: &str| {
        let stop = AtomicBool::new(false);
        let circumstances = Circumstances {
            out: directory.path().join(name),
            ..circumstances.clone()
        };
        larder_lab::run::run(request, &circumstances, &stop, &mut |_| {}).unwrap();
        larder_lab::results::read(&circumstances.out)
            .unwrap()
            .records
    };
    let base = Request {
        rounds: 1,
        volumes: vec![64 * MIB],
        ..base
    };

    let dbfs = Request {
        experiment: Experiment::Dbfs,
        writers: vec![3],
        reads_max: 50,
        ..base.clone()
    };
    let records = run(&dbfs, "dbfs");
    let reads: Vec<_> = records
        .iter()
        .filter(|one| one.measure == "read_mb_s")
        .collect();
    // The table and two cycles, for two backends.
    assert_eq!(reads.len(), 6);
    assert_eq!(
        reads
            .iter()
            .filter(|one| one.case.contains_key("cycle"))
            .count(),
        4
    );

    let trace = directory.path().join("trace.csv");
    fs::write(
        &trace,
        "op,key,size\nput,a,5000\nput,b,0\nget,a\nput,a,70000\ndelete,b\nput,b,31\n",
    )
    .unwrap();
    assert_eq!(trace::read_trace(&trace).unwrap()[2], Op::Get { key: 0 });
    let replay = Request {
        experiment: Experiment::Trace,
        source: Some(trace.clone()),
        looks: 2,
        ..base.clone()
    };
    let records = run(&replay, "trace");
    let ages: Vec<f64> = records
        .iter()
        .filter(|one| one.measure == "live_bytes" && one.backend.starts_with("dir"))
        .map(|one| one.age)
        .collect();
    assert_eq!(ages, [0.0, 5000.0 / 70_031.0], "AGE-1");
    for (wrong, what) in [
        ("put,a", "size"),
        ("get,b", "not put"),
        ("hold,a", "no operation"),
        ("", "no operation"),
    ] {
        fs::write(&trace, wrong).unwrap();
        assert!(
            trace::read_trace(&trace).unwrap_err().text.contains(what),
            "{wrong}"
        );
    }

    // A history of three commits.
    let repository = directory.path().join("repository");
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(&repository).args(arguments);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(command.output().unwrap().status.success(), "{arguments:?}");
    };
    fs::create_dir(&repository).unwrap();
    git(&["init", "-q"]);
    git(&["config", "user.email", "a@example.org"]);
    git(&["config", "user.name", "a"]);
    for (name, bytes) in [("a b", 3), ("c", 2000), ("a b", 4000)] {
        fs::write(repository.join(name), vec![b'x'; bytes]).unwrap();
        git(&["add", "-A"]);
        git(&["commit", "-qm", "one"]);
    }
    let put = |key, bytes| Op::Put { key, bytes };
    let history = trace::read_history(&repository, 10).unwrap();
    assert_eq!(history, [put(0, 3), put(1, 2000), put(0, 4000)]);
    let replay = Request {
        experiment: Experiment::Git,
        source: Some(repository),
        ..base.clone()
    };
    assert!(
        run(&replay, "git")
            .iter()
            .any(|one| one.measure == "read_p99_us")
    );

    let site = site(directory.path());
    if can(&site, "ext2-2k") && can(&site, "postgres") {
        let cluster = Request {
            experiment: Experiment::Cluster,
            backends: vec![Spec::parse("ext2-2k").unwrap()],
            volumes: vec![320 * MIB],
            transactions: 10,
            statements: 20,
            ..base
        };
        let records = run(&cluster, "cluster");
        let times: Vec<_> = records
            .iter()
            .filter(|one| one.measure == "seconds")
            .collect();
        assert_eq!(times.len(), 9);
        assert_eq!(times[8].case["action"], "delete");
        assert_eq!(times[8].case["transactions"], "10");
        assert_eq!(times[8].case["block_bytes"], "2048");
        assert!(
            records
                .iter()
                .any(|one| one.measure == "device_kb_per_transaction" && one.value > 0.0)
        );
    }
}
