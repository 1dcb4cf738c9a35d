//! Two mounts of one database against a model: each operation on one of them is made durable, and
//! the other shows the tree of the model, and goes on from there.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::locks::Two;
use larder_testkit::{Generator, HostTree, Mix, Model, Op, Rng, Tree, digest, explain_difference};

/// Both mounts, below a directory of their own, and what must be there.
struct Pair {
    trees: [HostTree; 2],
    model: Model,
}

impl Pair {
    fn new(two: &Two, name: &str) -> Pair {
        let roots = two.roots();
        std::fs::create_dir(roots[0].join(name)).unwrap();
        std::fs::File::open(&roots[0]).unwrap().sync_all().unwrap();
        Pair {
            trees: roots.map(|root| HostTree::new(root.join(name))),
            model: Model::new(),
        }
    }

    /// Does it on one mount, durably.
    fn apply(&mut self, on: usize, op: &Op) {
        self.trees[on]
            .apply(op)
            .unwrap_or_else(|error| panic!("{op:?} on {on}: {error}"));
        self.model.apply(op);
        self.trees[on].apply(&Op::SyncAll).unwrap();
    }

    fn walk(&self, on: usize) -> Tree {
        self.trees[on]
            .walk()
            .unwrap_or_else(|error| panic!("walk on {on}: {error}"))
    }

    fn require_alike(&self, on: usize, what: &dyn std::fmt::Debug) {
        let (expected, found) = (self.model.tree(), self.walk(on));
        assert_eq!(
            digest(&expected),
            digest(&found),
            "COMPANY-1: {what:?}, seen on {on}: {}",
            explain_difference(&expected, &found)
        );
    }
}

/// What the operations of pairs find.
fn setup() -> Vec<Op> {
    let create = |path: &str| Op::Create {
        path: path.into(),
        mode: 0o644,
    };
    let write = |path: &str, seed| Op::Write {
        path: path.into(),
        offset: 0,
        len: 5000,
        seed,
    };
    vec![
        create("/f"),
        write("/f", 1),
        create("/g"),
        write("/g", 2),
        Op::SetXattr {
            path: "/f".into(),
            name: "user.x".into(),
            value: b"1".to_vec(),
        },
        Op::Mkdir {
            path: "/d".into(),
            mode: 0o755,
        },
        create("/d/h"),
        write("/d/h", 3),
        Op::Mkdir {
            path: "/e".into(),
            mode: 0o755,
        },
    ]
}

/// One of each kind; `is_long`: with those that differ only in what they meet.
fn operations(is_long: bool) -> Vec<Op> {
    let rename = |from: &str, to: &str| Op::Rename {
        from: from.into(),
        to: to.into(),
    };
    let path = || "/f".to_owned();
    let mut all = vec![
        Op::Write {
            path: path(),
            offset: 100,
            len: 3000,
            seed: 7,
        },
        Op::Append {
            path: path(),
            len: 700,
            seed: 8,
        },
        Op::Truncate {
            path: path(),
            len: 1000,
        },
        Op::Unlink { path: path() },
        rename("/g", "/f"),
        rename("/f", "/d/n"),
        Op::Link {
            from: path(),
            to: "/n".into(),
        },
        Op::Create {
            path: "/n".into(),
            mode: 0o600,
        },
        rename("/d", "/n"),
        Op::Chmod {
            path: path(),
            mode: 0o600,
        },
        Op::Append {
            path: "/d/h".into(),
            len: 90,
            seed: 9,
        },
    ];
    if is_long {
        all.extend([
            Op::Punch {
                path: path(),
                offset: 0,
                len: 4096,
            },
            Op::Exchange {
                one: path(),
                other: "/g".into(),
            },
            Op::Exchange {
                one: "/d".into(),
                other: "/e".into(),
            },
            Op::Symlink {
                path: "/n".into(),
                target: "f".into(),
            },
            Op::Mkdir {
                path: "/n".into(),
                mode: 0o755,
            },
            Op::Rmdir { path: "/e".into() },
            Op::Unlink {
                path: "/d/h".into(),
            },
            Op::Create {
                path: "/d/n".into(),
                mode: 0o644,
            },
            Op::SetXattr {
                path: path(),
                name: "user.x".into(),
                value: b"2".to_vec(),
            },
            Op::RemoveXattr {
                path: path(),
                name: "user.x".into(),
            },
            Op::Anonymous {
                path: "/n".into(),
                mode: 0o644,
                len: 5000,
                seed: 10,
            },
            rename("/f", "/g"),
        ]);
    }
    all
}

/// Whether the operation finds what it needs.
fn is_possible(model: &Model, op: &Op) -> bool {
    match op {
        Op::Create { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Symlink { path, .. }
        | Op::Anonymous { path, .. } => {
            let parent = path.rsplit_once('/').unwrap().0;
            !model.exists(path) && (parent.is_empty() || model.exists(parent))
        }
        Op::Link { from, to } => model.exists(from) && !model.exists(to),
        Op::Rename { from, to } => {
            let parent = to.rsplit_once('/').unwrap().0;
            let is_dir = from == "/d";
            // A directory takes the place of an empty one.
            let is_empty_dir = |path: &str| {
                model.is_empty(path) && model.paths().any(|(one, is_dir, _)| is_dir && one == path)
            };
            let is_free = !model.exists(to) || !is_dir || is_empty_dir(to);
            model.exists(from) && is_free && (parent.is_empty() || model.exists(parent))
        }
        Op::Exchange { one, other } => model.exists(one) && model.exists(other),
        Op::Rmdir { path } => model.exists(path) && model.is_empty(path),
        Op::RemoveXattr { path, .. } => model.exists(path) && !model.xattr_names(path).is_empty(),
        Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Punch { path, .. }
        | Op::Unlink { path }
        | Op::SetXattr { path, .. }
        | Op::Chmod { path, .. } => model.exists(path),
        Op::Sync { .. } | Op::SyncAll | Op::Replace { .. } | Op::Move { .. } => false,
    }
}

fn every_pair(is_long: bool) {
    let two = Two::new();
    let operations = operations(is_long);
    let mut index = 0;
    for first in &operations {
        for second in &operations {
            index += 1;
            let on = index % 2;
            let mut pair = Pair::new(&two, &format!("p{index}"));
            for op in &setup() {
                pair.trees[on].apply(op).unwrap();
                pair.model.apply(op);
            }
            pair.trees[on].apply(&Op::SyncAll).unwrap();
            // Both kernels know all of it.
            pair.require_alike(0, &"setup");
            pair.require_alike(1, &"setup");
            pair.apply(on, first);
            match is_possible(&pair.model, second) {
                true => pair.apply(1 - on, second),
                false => drop(pair.trees[1 - on].apply(second).unwrap_err()),
            }
            for on in [0, 1] {
                pair.require_alike(on, &(first, second));
            }
        }
    }
}

#[test]
fn every_pair_of_operations_is_one_after_the_other() {
    every_pair(false);
}

#[test]
#[ignore = "half a minute: cargo xtask soak"]
fn every_pair_of_more_operations_is_one_after_the_other() {
    every_pair(true);
}

/// Random steps, each on a mount that is chosen anew now and then.
fn steps(seed: u64, count: u64) {
    let two = Two::new();
    let mut pair = Pair::new(&two, "tree");
    let mut rng = Rng::new(seed);
    let mut generator = Generator::new(
        seed,
        Mix {
            entries_max: 12,
            file_bytes_max: 20_000,
            write_bytes_max: 8_000,
            sync_percent: 0,
            overwrite_percent: 0,
            fragment_percent: 0,
        },
    );
    let mut on = 0;
    for step in 0..count {
        if rng.chance(30) {
            on = 1 - on;
        }
        let op = generator.next_op();
        pair.apply(on, &op);
        generator.note_made(&op);
        pair.require_alike(1 - on, &format!("seed {seed}, step {step}, {op:?} on {on}"));
    }
    for on in [0, 1] {
        pair.require_alike(on, &"the end");
    }
}

#[test]
fn two_clients_that_take_turns_see_one_tree() {
    steps(1, 300);
}

#[test]
#[ignore = "many minutes: cargo xtask soak"]
fn two_clients_that_take_turns_see_one_tree_for_long() {
    let number = |name: &str, default: u64| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().unwrap())
    };
    let count = number("LARDER_TEST_STEPS", 100_000);
    match number("LARDER_TEST_SEED", 0) {
        0 => (2..=4).for_each(|seed| steps(seed, count)),
        seed => steps(seed, count),
    }
}
