//! The corpus of hostile databases: everything that a generator can make wrong, met by every verb,
//! as root and as an ordinary user. Nothing outside of the database changes, each verb ends in
//! bounded time and memory, none panics, and one that fails says why (docs/security.md).
//!
//! The tests here are a sample, and a table of what once harmed; `cargo xtask hostile` goes through
//! all of it, for as long as it is given.

pub mod all;
pub mod damage;
mod fixed;
pub mod sandbox;
pub mod verbs;

use damage::{Damage, Template};
use sandbox::{EVERYBODY, Figures, Ran, Sandbox, Who};
use std::time::{Duration, Instant};
use verbs::{VERBS, Verb};

/// Pairs of a verb and a user that a damage meets in one round: of files and schemas there are few,
/// of values many.
fn pairs_per_round(damage: &Damage) -> usize {
    match damage {
        Damage::File(..) | Damage::Schema(_) | Damage::Nothing => 8,
        Damage::Bytes(..) | Damage::Value { .. } => 2,
    }
}

/// Minutes, where `LARDER_HOSTILE_MINUTES` says nothing else.
const MINUTES: u64 = 10;

/// Every verb as every user that there can be.
fn pairs() -> Vec<(&'static Verb, Who)> {
    let users = match sandbox::is_root() {
        true => &EVERYBODY[..],
        false => &EVERYBODY[..1],
    };
    let all = users
        .iter()
        .flat_map(|who| VERBS.iter().map(|verb| (verb, *who)));
    all.collect()
}

/// The databases of one run: a template, and where each user works.
struct Corpus {
    template: Template,
    sandboxes: Vec<(Who, Sandbox)>,
    figures: Figures,
}

impl Corpus {
    fn new() -> Corpus {
        let template = Template::new();
        let sandboxes = EVERYBODY
            .iter()
            .filter(|who| sandbox::is_root() || **who == Who::Root)
            .map(|who| (*who, Sandbox::new(&template.directory(), *who)))
            .collect();
        Corpus {
            template,
            sandboxes,
            figures: Figures::default(),
        }
    }

    /// One damage, and those who meet it. Returns what each of them left.
    fn meet<'v>(
        &mut self,
        damage: &Damage,
        pairs: impl Iterator<Item = (&'v Verb, Who)>,
    ) -> Vec<Ran> {
        let mut all = Vec::new();
        let Some(damaged) = self.template.damaged(damage) else {
            return all;
        };
        self.figures.case_count += 1;
        let case = damage.to_string();
        for (verb, who) in pairs {
            let found = self.sandboxes.iter_mut().find(|(of, _)| *of == who);
            let (_, sandbox) = found.unwrap();
            sandbox.put_database(&damaged);
            let (id, last) = (&self.template.transaction, &self.template.last);
            let ran = sandbox.run(verb, id, last, &case, &mut self.figures);
            let is_sound = matches!(damage, Damage::Nothing) && who != Who::UserOnRoots;
            // Where users may not mount, they meet that.
            let may_not = ran.stderr.contains("failed to open /dev/fuse");
            if is_sound && !may_not && ran.code != Some(verb.code) {
                let told = format!("{who:?}: {:?}: {:?} {}", verb.words, ran.code, ran.stderr);
                self.figures.wrong.push(told);
            }
            all.push(ran);
        }
        all
    }
}

/// Numbers of a seed in an order of their own: SplitMix64 decides each exchange.
fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for left in (1..items.len()).rev() {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        items.swap(left, ((z ^ (z >> 31)) % (left as u64 + 1)) as usize);
    }
}

/// What the corpus asks for is what the verbs do on a database with which nothing is wrong.
#[test]
fn every_verb_does_its_work_on_a_sound_database() {
    let mut corpus = Corpus::new();
    corpus.meet(&Damage::Nothing, pairs().into_iter());
    corpus.figures.assert_bounded();
}

/// A sample: every verb comes up, every kind of damage, and every user.
#[test]
fn a_sample_of_the_corpus_ends_in_bounds() {
    let mut corpus = Corpus::new();
    let mut damages = corpus.template.damages();
    shuffle(&mut damages, 19);
    let mut pairs = pairs();
    shuffle(&mut pairs, 19);
    for (damage, pair) in damages.iter().zip(pairs.into_iter().take(150)) {
        corpus.meet(damage, [pair].into_iter());
    }
    corpus.figures.assert_bounded();
}

fn number_of(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap())
}

/// Whether the damage is one of those that `LARDER_HOSTILE_ONLY` asks for.
fn is_named(damage: &Damage) -> bool {
    let only = std::env::var("LARDER_HOSTILE_ONLY");
    only.map_or(true, |only| damage.to_string().contains(&only))
}

/// All of it: round after round, each damage meets the next verbs, until all have met all.
#[test]
#[ignore = "as long as it is given: cargo xtask hostile, 10 minutes in cargo xtask soak"]
fn every_damage_meets_every_verb() {
    let minutes = number_of("LARDER_HOSTILE_MINUTES").unwrap_or(MINUTES);
    let seed = number_of("LARDER_HOSTILE_SEED").unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut corpus = Corpus::new();
    let (mut damages, mut pairs) = (corpus.template.damages(), pairs());
    damages.retain(is_named);
    shuffle(&mut damages, seed);
    shuffle(&mut pairs, seed);
    // The few first.
    damages.sort_by_key(|damage| std::cmp::Reverse(pairs_per_round(damage)));
    let (damage_count, pair_count) = (damages.len(), pairs.len());
    println!("{damage_count} damages, {pair_count} verbs and users, seed {seed}");
    let mut told = 0;
    'all: for round in 0..pair_count {
        for (number, damage) in damages.iter().enumerate() {
            let count = pairs_per_round(damage);
            if round * count >= pair_count {
                continue; // It has met all.
            }
            if Instant::now() > end {
                println!("ended by time in round {}, at {number}", round + 1);
                break 'all;
            }
            let first = round * count + number;
            let next = (first..first + count).map(|index| pairs[index % pair_count]);
            corpus.meet(damage, next);
            for line in &corpus.figures.wrong[told..] {
                println!("WRONG {line}");
            }
            told = corpus.figures.wrong.len();
        }
    }
    corpus.figures.assert_bounded();
}
