//! Planted anomalies of each kind, and random histories that have none.

use super::*;
use crate::Rng;

fn transaction(began: u64, ended: u64, steps: &[Step]) -> Transaction {
    Transaction {
        began,
        ended,
        end: End::Committed,
        steps: steps.to_vec(),
    }
}

/// All at the same time.
fn beside(steps: &[&[Step]]) -> Vec<Transaction> {
    let transactions = steps.iter();
    transactions
        .map(|steps| transaction(0, 100, steps))
        .collect()
}

fn append(list: u64, value: u64) -> Step {
    Step::Append { list, value }
}

fn read(list: u64, values: &[u64]) -> Step {
    Step::Read {
        list,
        values: values.to_vec(),
    }
}

#[track_caller]
fn assert_found(history: &[Transaction], level: Level, anomaly: Anomaly) {
    let findings = check_history(history, level);
    let kinds: Vec<Anomaly> = findings.iter().map(|finding| finding.anomaly).collect();
    assert!(kinds.contains(&anomaly), "TESTKIT-5: {findings:?}");
}

const SI: Level = Level::SnapshotIsolation;

#[test]
fn planted_anomalies_are_found() {
    let (x, y) = (1, 2);
    let mut aborted = beside(&[&[append(x, 1)], &[read(x, &[1])]]);
    aborted[0].end = End::Aborted;
    assert_found(&aborted, SI, Anomaly::G1a);
    assert_found(
        &beside(&[
            &[append(x, 1), append(x, 2)],
            &[read(x, &[1])],
            &[read(x, &[1, 2])],
        ]),
        SI,
        Anomaly::G1b,
    );
    assert_found(
        &beside(&[
            &[append(x, 1), append(y, 1)],
            &[append(x, 2), append(y, 2)],
            &[read(x, &[1, 2]), read(y, &[2, 1])],
        ]),
        SI,
        Anomaly::G0,
    );
    assert_found(
        &beside(&[
            &[append(x, 1), read(y, &[1])],
            &[append(y, 1), read(x, &[1])],
        ]),
        SI,
        Anomaly::G1c,
    );
    // One transaction's writes seen in part.
    assert_found(
        &beside(&[
            &[append(x, 1), append(y, 1)],
            &[read(x, &[1]), read(y, &[])],
            &[read(y, &[1])],
        ]),
        SI,
        Anomaly::GSi,
    );
    // A lost update: both read the same, and both wrote.
    assert_found(
        &beside(&[
            &[read(x, &[]), append(x, 1)],
            &[read(x, &[]), append(x, 2)],
            &[read(x, &[1, 2])],
        ]),
        SI,
        Anomaly::GSi,
    );
    // Two readers that see two writers in different orders: two rw that do not follow one another.
    let long_fork = beside(&[
        &[append(x, 1)],
        &[append(y, 1)],
        &[read(x, &[1]), read(y, &[])],
        &[read(y, &[1]), read(x, &[])],
    ]);
    assert_found(&long_fork, SI, Anomaly::GSi);
    // A read from the past.
    let stale = [
        transaction(0, 1, &[append(x, 1)]),
        transaction(2, 3, &[read(x, &[])]),
        transaction(4, 5, &[read(x, &[1])]),
    ];
    assert_found(&stale, SI, Anomaly::GSi);
    assert_found(
        &[
            transaction(0, 1, &[append(x, 1)]),
            transaction(2, 3, &[read(x, &[])]),
        ],
        SI,
        Anomaly::Lost,
    );
    assert_found(&beside(&[&[read(x, &[7])]]), SI, Anomaly::Garbage);
    assert_found(
        &beside(&[
            &[append(x, 1), append(x, 2)],
            &[read(x, &[1, 2])],
            &[read(x, &[2])],
        ]),
        SI,
        Anomaly::Order,
    );
    assert_found(
        &beside(&[&[append(x, 1), read(x, &[])]]),
        SI,
        Anomaly::Internal,
    );
    assert_found(
        &beside(&[&[append(x, 1)], &[read(x, &[]), read(x, &[1])]]),
        SI,
        Anomaly::Internal,
    );
    // Write skew is what snapshot isolation permits, and serializability does not.
    let skew = beside(&[
        &[read(x, &[]), append(y, 1)],
        &[read(y, &[]), append(x, 1)],
        &[read(x, &[1]), read(y, &[1])],
    ]);
    assert_eq!(check_history(&skew, SI), [], "TESTKIT-5");
    assert_found(&skew, Level::Serializable, Anomaly::G2);
}

#[test]
fn who_was_killed_may_have_committed_or_not() {
    let mut history = beside(&[
        &[append(1, 1), append(2, 1)],
        &[read(1, &[1]), read(2, &[1])],
    ]);
    history[0].end = End::Unknown;
    assert_eq!(check_history(&history, SI), []);
    history[1].steps = vec![read(1, &[]), read(2, &[])];
    assert_eq!(check_history(&history, SI), []);
    history[1].steps = vec![read(1, &[1]), read(2, &[])];
    history.push(transaction(200, 201, &[read(2, &[1])]));
    assert_found(&history, SI, Anomaly::GSi);
    // It read its own append, was killed before its commit, and another came in its place.
    let mut replaced = beside(&[
        &[append(1, 1)],
        &[append(1, 2), read(1, &[1, 2])],
        &[append(1, 3)],
        &[read(1, &[1, 3])],
    ]);
    replaced[1].end = End::Unknown;
    assert_eq!(check_history(&replaced, SI), [], "TESTKIT-5");
    // What it read of others counts.
    replaced[1].steps = vec![append(1, 2), read(1, &[3, 1, 2])];
    assert_found(&replaced, SI, Anomaly::Order);
}

#[test]
fn who_was_killed_may_have_read_what_it_did_not_commit() {
    // It read its own append and was killed before its commit; then others appended.
    let mut history = vec![
        transaction(0, 1, &[append(1, 1)]),
        transaction(2, 100, &[append(1, 2), read(1, &[1, 2])]),
        transaction(4, 5, &[append(1, 3)]),
        transaction(6, 7, &[read(1, &[1, 3])]),
    ];
    history[1].end = End::Unknown;
    assert_eq!(check_history(&history, SI), [], "TESTKIT-5");
    // What it saw of others still counts.
    history[1].steps = vec![append(1, 2), read(1, &[2])];
    assert_found(&history, SI, Anomaly::GSi);
    // Who was told that it is committed cannot have been passed over, and nor can one that others
    // saw.
    history[1].steps = vec![append(1, 2), append(2, 2), read(1, &[1, 2])];
    history[1].end = End::Committed;
    assert_found(&history, SI, Anomaly::Order);
    history[1].end = End::Unknown;
    history.push(transaction(8, 9, &[read(2, &[2])]));
    assert_found(&history, SI, Anomaly::Order);
}

/// Runs random transactions on lists in memory: each reads a snapshot, and commits unless somebody
/// has written what it writes since. `overlap` 1: one after the other.
fn run(seed: u64, overlap: u64) -> Vec<Transaction> {
    let mut rng = Rng::new(seed);
    let mut lists: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut history = Vec::new();
    #[allow(clippy::type_complexity)]
    let mut open: Vec<(u64, HashMap<u64, Vec<u64>>, Vec<Step>)> = Vec::new();
    let (mut clock, mut value) = (0, 0);
    for session in 0..200 {
        clock += 1;
        let snapshot = lists.clone();
        let mut mine = snapshot.clone();
        let mut steps = Vec::new();
        for _ in 0..rng.below(4) + 1 {
            let list = rng.below(5);
            let own = mine.entry(list).or_default();
            if rng.below(2) == 0 {
                steps.push(read(list, own));
            } else {
                value += 1;
                own.push(value);
                steps.push(append(list, value));
            }
        }
        open.push((clock, snapshot, steps));
        if (open.len() as u64) < overlap && session < 199 {
            continue;
        }
        while let Some((began, snapshot, steps)) =
            (!open.is_empty()).then(|| open.swap_remove(rng.below(open.len() as u64) as usize))
        {
            clock += 1;
            let written = steps.iter().filter_map(|step| match step {
                Step::Append { list, value } => Some((*list, *value)),
                Step::Read { .. } => None,
            });
            let written: Vec<(u64, u64)> = written.collect();
            let is_first = written
                .iter()
                .all(|(list, _)| snapshot.get(list) == lists.get(list));
            if is_first {
                for (list, value) in written {
                    lists.entry(list).or_default().push(value);
                }
            }
            let end = if is_first {
                End::Committed
            } else {
                End::Aborted
            };
            history.push(Transaction {
                began,
                ended: clock,
                end,
                steps,
            });
        }
    }
    let reads: Vec<Step> = (0..5)
        .map(|list| read(list, lists.get(&list).map_or(&[][..], Vec::as_slice)))
        .collect();
    history.push(transaction(clock + 1, clock + 2, &reads));
    history
}

#[test]
fn what_is_right_passes() {
    let mut skewed = 0;
    for seed in 0..60 {
        assert_eq!(
            check_history(&run(seed, 1), Level::Serializable),
            [],
            "TESTKIT-5: seed {seed}"
        );
        let mut isolated = run(seed, 2 + seed % 6);
        assert_eq!(check_history(&isolated, SI), [], "TESTKIT-5: seed {seed}");
        skewed += usize::from(!check_history(&isolated, Level::Serializable).is_empty());
        let mut rng = Rng::new(seed);
        for transaction in &mut isolated {
            if rng.chance(30) {
                transaction.end = End::Unknown;
            }
        }
        assert_eq!(check_history(&isolated, SI), [], "TESTKIT-5: seed {seed}");
    }
    assert!(skewed > 0, "snapshot isolation alone permits write skew");
}

#[test]
fn what_is_changed_at_random_is_noticed_most_often() {
    // Two values of the last read change places, or one is not there.
    let mut noticed = 0;
    for seed in 0..60 {
        let mut history = run(seed, 4);
        let mut rng = Rng::new(seed);
        let last = history.last_mut().unwrap();
        let Step::Read { values, .. } = &mut last.steps[rng.below(5) as usize] else {
            unreachable!();
        };
        if values.len() < 3 {
            continue;
        }
        let at = rng.below(values.len() as u64 - 1) as usize;
        match seed % 2 {
            0 => values.swap(at, at + 1),
            _ => drop(values.remove(at)),
        }
        noticed += usize::from(!check_history(&history, SI).is_empty());
    }
    assert!(noticed >= 25, "TESTKIT-5: {noticed}");
}
