//! All of the corpus once: each damage is checked, read, changed and mounted, each by one verb and
//! one user; which ones, its number says, so that over the damages all come up. Or each damage is
//! met by every verb and user, a part of them at a time: a hundred times as much. A file keeps what
//! was done, so that a run goes on where one before it was ended, and shards make one run.

use super::damage::Damage;
use super::sandbox::{EVERYBODY, Figures, Who, is_root};
use super::verbs::{How, VERBS, Verb};
use super::{Corpus, is_named, number_of, pairs, shuffle};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

/// Verbs that change nothing in a database.
const READING: [&str; 18] = [
    "cat",
    "df",
    "diff",
    "du",
    "extension",
    "find",
    "frag",
    "get",
    "log",
    "ls",
    "refused",
    "rows",
    "snapshot",
    "stat",
    "stats",
    "status",
    "store",
    "txn",
];
/// Of these that have verbs below them, those that do.
const CHANGING: [&str; 11] = [
    "create", "destroy", "hold", "release", "seal", "set", "run", "begin", "commit", "abort",
    "drop",
];

/// What is done to a damaged database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Checks,
    Reads,
    Changes,
    Mounts,
}

const EFFECTS: [Effect; 4] = [
    Effect::Checks,
    Effect::Reads,
    Effect::Changes,
    Effect::Mounts,
];

fn effect(verb: &Verb) -> Effect {
    let is_changing = || verb.words.iter().any(|word| CHANGING.contains(word));
    match verb.words[0] {
        _ if matches!(verb.how, How::Mounts | How::BesideMount) => Effect::Mounts,
        "check" => Effect::Checks,
        "sql"
            if verb
                .words
                .last()
                .is_some_and(|sql| sql.starts_with("SELECT")) =>
        {
            Effect::Reads
        }
        word if READING.contains(&word) && !is_changing() => Effect::Reads,
        _ => Effect::Changes,
    }
}

/// The verb that does `what` to the damage of this number, and who runs it.
fn choose(what: Effect, number: usize) -> (&'static Verb, Who) {
    let verbs: Vec<&Verb> = VERBS.iter().filter(|verb| effect(verb) == what).collect();
    let users = match is_root() {
        true => &EVERYBODY[..],
        false => &EVERYBODY[..1],
    };
    let round = number / users.len();
    (
        verbs[round % verbs.len()],
        users[(number + what as usize) % users.len()],
    )
}

/// Pairs of a verb and a user that a damage meets at a time, where it meets all.
const PART_PAIRS: usize = 8;

/// What damages meet, and in how many parts.
struct Plan {
    /// In parts, where it is everything.
    pairs: Option<Vec<(&'static Verb, Who)>>,
}

impl Plan {
    fn parts(&self) -> usize {
        let count = self.pairs.as_ref().map_or(1, Vec::len);
        count.div_ceil(PART_PAIRS)
    }

    /// What this damage meets in this round, and what a line of the file calls that.
    fn round(&self, round: usize, number: usize, damage: &Damage) -> Met {
        let name = name_of(damage);
        let Some(pairs) = &self.pairs else {
            let pairs = EFFECTS.into_iter().map(|what| choose(what, number));
            return (name, pairs.collect());
        };
        // Over the damages a round has all verbs; those of one part lie far from each other.
        let (parts, part) = (self.parts(), (round + number) % self.parts());
        let pairs = pairs.iter().skip(part).step_by(parts).copied();
        (
            format!("part {} of {parts}: {name}", part + 1),
            pairs.collect(),
        )
    }
}

type Met = (String, Vec<(&'static Verb, Who)>);

/// What one damage came to, a line of the file: tabs between the fields, the name last.
struct Done {
    name: String,
    runs: usize,
    refused: usize,
    slowest_ms: u64,
    largest_kib: u64,
    wrong: usize,
}

impl Done {
    fn new(name: String, figures: &Figures) -> Done {
        Done {
            name,
            runs: figures.run_count,
            refused: figures.refused_count,
            slowest_ms: figures.slowest.0.as_millis() as u64,
            largest_kib: figures.largest.0 >> 10,
            wrong: figures.wrong.len(),
        }
    }

    fn parse(line: &str) -> Option<Done> {
        let mut fields = line.splitn(6, '\t');
        let mut number = || fields.next()?.parse::<u64>().ok();
        let (runs, refused) = (number()? as usize, number()? as usize);
        let (slowest_ms, largest_kib, wrong) = (number()?, number()?, number()? as usize);
        Some(Done {
            name: fields.next()?.to_owned(),
            runs,
            refused,
            slowest_ms,
            largest_kib,
            wrong,
        })
    }

    fn line(&self) -> String {
        format!(
            "{}\t{}\t{}\t{}\t{}\t{}",
            self.runs, self.refused, self.slowest_ms, self.largest_kib, self.wrong, self.name
        )
    }
}

/// A name that is one line.
fn name_of(damage: &Damage) -> String {
    damage.to_string().replace(char::is_control, " ")
}

/// Which shard this is, of how many.
fn shard() -> (usize, usize) {
    let text = std::env::var("LARDER_HOSTILE_SHARD").unwrap_or_else(|_| "1/1".into());
    let (number, count) = text.split_once('/').unwrap();
    let (number, count): (usize, usize) = (number.parse().unwrap(), count.parse().unwrap());
    assert!((1..=count).contains(&number), "shard {text}");
    (number, count)
}

#[test]
#[ignore = "an hour: cargo xtask hostile --all"]
fn every_damage_is_checked_read_changed_and_mounted() {
    let mut corpus = Corpus::new();
    let mut damages = corpus.template.damages();
    damages.retain(is_named);
    shuffle(&mut damages, number_of("LARDER_HOSTILE_SEED").unwrap_or(1));
    let is_every_verb = std::env::var_os("LARDER_HOSTILE_EVERY_VERB").is_some();
    let plan = Plan {
        pairs: is_every_verb.then(pairs),
    };
    let state = std::env::var("LARDER_HOSTILE_STATE").unwrap_or_else(|_| {
        let place = corpus.template.directory().join("state");
        place.to_str().unwrap().to_owned()
    });
    let text = fs::read_to_string(&state).unwrap_or_default();
    let mut done: Vec<Done> = text.lines().filter_map(Done::parse).collect();
    let known: HashSet<String> = done.iter().map(|one| one.name.clone()).collect();
    let mut state = File::options()
        .create(true)
        .append(true)
        .open(state)
        .unwrap();
    let (shard, shards) = shard();
    let minutes = number_of("LARDER_HOSTILE_MINUTES").unwrap_or(u64::MAX / 60);
    let (began, time) = (Instant::now(), Duration::from_secs(60 * minutes));
    let total = damages.len() * plan.parts();
    let mut is_over = false;
    for item in (0..total).filter(|item| item % shards == shard - 1) {
        let (round, number) = (item / damages.len(), item % damages.len());
        let damage = &damages[number];
        let (name, met) = plan.round(round, number, damage);
        if known.contains(&name) {
            continue;
        }
        is_over = began.elapsed() > time;
        if is_over {
            break;
        }
        corpus.figures = Figures::default();
        corpus.meet(damage, met.into_iter());
        for wrong in &corpus.figures.wrong {
            println!("WRONG {wrong}");
            writeln!(state, "WRONG {}", wrong.replace(char::is_control, " ")).unwrap();
        }
        let one = Done::new(name, &corpus.figures);
        writeln!(state, "{}", one.line()).unwrap();
        done.push(one);
    }
    let sum = |of: fn(&Done) -> usize| done.iter().map(of).sum::<usize>();
    let most = |of: fn(&Done) -> u64| done.iter().max_by_key(|one| of(one));
    let (slow, large) = (most(|one| one.slowest_ms), most(|one| one.largest_kib));
    println!(
        "{} of {total} damages or parts{}, {} runs, {} refused; slowest {:.2} s ({}); \
         largest {} MiB ({}); {} wrong",
        done.len(),
        if is_over { ", ended by time" } else { "" },
        sum(|one| one.runs),
        sum(|one| one.refused),
        slow.map_or(0.0, |one| one.slowest_ms as f64 / 1000.0),
        slow.map_or("", |one| &one.name),
        large.map_or(0, |one| one.largest_kib >> 10),
        large.map_or("", |one| &one.name),
        sum(|one| one.wrong),
    );
    let wrong = text.lines().filter(|line| line.starts_with("WRONG "));
    let before: Vec<&str> = wrong.collect();
    assert_eq!(sum(|one| one.wrong), 0, "before: {}", before.join("\n"));
}

#[test]
fn every_verb_comes_up_for_every_user() {
    let count = VERBS.len() * EVERYBODY.len();
    for what in EFFECTS {
        let chosen: HashSet<String> = (0..count)
            .map(|number| choose(what, number))
            .map(|(verb, who)| format!("{:?} {:?} {who:?}", verb.words, verb.how))
            .collect();
        let verbs = VERBS.iter().filter(|verb| effect(verb) == what).count();
        let users = if is_root() { EVERYBODY.len() } else { 1 };
        assert_eq!(chosen.len(), verbs * users, "{what:?}");
    }
    let plan = Plan {
        pairs: Some(pairs()),
    };
    let met: HashSet<String> = (0..plan.parts())
        .flat_map(|round| plan.round(round, 5, &Damage::Nothing).1)
        .map(|(verb, who)| format!("{:?} {:?} {who:?}", verb.words, verb.how))
        .collect();
    assert_eq!(met.len(), pairs().len(), "every verb and user");
    let one = Done::parse("4\t1\t20\t3000\t0\ta\tb").unwrap();
    assert_eq!(
        (one.line().as_str(), one.runs),
        ("4\t1\t20\t3000\t0\ta\tb", 4)
    );
}

/// Which wrong values `check` says nothing of: a list to read, most of them are values that
/// somebody may have meant.
#[test]
#[ignore = "ten minutes, by hand: prints what check is silent about"]
fn what_check_finds_of_wrong_values() {
    let mut corpus = Corpus::new();
    let check = VERBS.iter().find(|verb| verb.words[0] == "check").unwrap();
    let (mut count, mut silent) = (0, 0);
    for damage in corpus.template.damages() {
        let name = name_of(&damage);
        if !name.starts_with("catalog.db: ") || !matches!(damage, Damage::Value { .. }) {
            continue;
        }
        corpus.figures = Figures::default();
        corpus.meet(&damage, [(check, EVERYBODY[0])].into_iter());
        assert!(
            corpus.figures.wrong.is_empty(),
            "{:?}",
            corpus.figures.wrong
        );
        count += 1;
        if corpus.figures.refused_count == 0 {
            silent += 1;
            println!("silent: {name}");
        }
    }
    assert!(count > 1000, "{count}");
    println!("check found {} of {count} wrong values", count - silent);
}
