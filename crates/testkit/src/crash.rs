//! What a power failure may leave: an enumeration of the legal states of a recording.
//!
//! The plan is made first, without touching bytes (a point, what of its window survives, and
//! whether a write is torn); then the states are made in the order of their points, so that the
//! flushed part is carried along and only the window is applied per state.

use std::collections::HashSet;
use std::fmt;

use crate::disk::Disk;
use crate::event::{Event, FileName};
use crate::record::Recording;
use crate::rng::Rng;
use crate::window::{Window, file_of, is_volatile};

/// Windows up to this long are enumerated whole; longer ones are sampled.
const EXHAUSTIVE_MAX: usize = 8;
/// The units at which a write may tear: a sector, and a page or physical sector.
const TEAR_BYTES: [u64; 2] = [512, 4096];

impl Recording {
    /// All that was written, flushed or not: the files as the recorded process saw them.
    pub fn replay_all(&self) -> Disk {
        let mut disk = Disk::default();
        self.events.iter().for_each(|event| disk.apply(event));
        disk
    }

    /// At most `budget` states with points in `from..=events.len()`, chosen by `seed`: up to half
    /// of them the whole window and its least part at as many points as possible, the rest subsets
    /// and tears.
    pub fn states(&self, from: usize, seed: u64, budget: usize) -> States<'_> {
        self.states_on(&Disk::default(), from, seed, budget)
    }

    /// The same for a run that began on `medium`, all of it durable: for a crash during recovery.
    pub fn states_on(&self, medium: &Disk, from: usize, seed: u64, budget: usize) -> States<'_> {
        let mut rng = Rng::new(seed);
        let points = self.points(from);
        let mut plans: Vec<Plan> = Vec::new();
        for point in &points {
            plans.push(Plan {
                point: point.at,
                survives: Survives::All,
                tear: None,
            });
            if point.window > usize::from(point.keeps_last) {
                plans.push(Plan {
                    point: point.at,
                    survives: Survives::Least,
                    tear: None,
                });
            }
        }
        draw_down(&mut plans, budget.div_ceil(2), &mut rng);
        let mut subsets = exhaustive(&points);
        draw_down(&mut subsets, (budget - plans.len()) / 2, &mut rng);
        plans.append(&mut subsets);
        let rich: Vec<&Point> = points.iter().filter(|point| point.window > 0).collect();
        while plans.len() < budget && !rich.is_empty() {
            let point = *rng.pick(&rich);
            plans.push(sample(point, &mut rng));
        }
        plans.sort_by_key(|plan| std::cmp::Reverse(plan.point));
        States {
            recording: self,
            at: 0,
            flushed: medium.clone(),
            window: Window::default(),
            acked: None,
            plans,
        }
    }

    /// The places where a failure differs from a failure one event earlier.
    fn points(&self, from: usize) -> Vec<Point> {
        let (mut window, mut points) = (Window::default(), Vec::new());
        for (index, event) in self.events.iter().enumerate() {
            window.advance(&self.events, index, |_| {});
            let at = index + 1;
            // After a flush or a directory sync the possible states are some of those before it,
            // and nothing more is promised.
            let is_new = is_volatile(event) || matches!(event, Event::Ack(_));
            if at >= from && is_new {
                points.push(Point {
                    at,
                    window: window.len(),
                    keeps_last: is_volatile(event),
                });
            }
        }
        points
    }
}

/// A place where the power may fail: after `at` events.
struct Point {
    at: usize,
    window: usize,
    /// States without the last event exist one point earlier already.
    keeps_last: bool,
}

/// Keeps `count_max` plans, chosen at random.
fn draw_down(plans: &mut Vec<Plan>, count_max: usize, rng: &mut Rng) {
    while plans.len() > count_max {
        plans.swap_remove(rng.below(plans.len() as u64) as usize);
    }
}

/// All subsets of all short windows, but for those that every point gets anyway.
fn exhaustive(points: &[Point]) -> Vec<Plan> {
    let mut plans = Vec::new();
    for point in points.iter().filter(|point| point.window <= EXHAUSTIVE_MAX) {
        let free = point.window - usize::from(point.keeps_last);
        let last = if point.keeps_last { 1 << free } else { 0 };
        // Neither none nor all of the free ones.
        for mask in 1..(1u64 << free).saturating_sub(1) {
            plans.push(Plan {
                point: point.at,
                survives: Survives::Mask(mask | last),
                tear: None,
            });
        }
    }
    plans
}

/// A random part of the window of `point`, torn or not.
fn sample(point: &Point, rng: &mut Rng) -> Plan {
    let survives = match rng.below(8) {
        0 => Survives::All,
        1 => Survives::Least,
        _ => Survives::Percent {
            percent: *rng.pick(&[10, 50, 90]),
            seed: rng.bits(),
        },
    };
    let tear = rng.chance(60).then(|| Tear {
        // The last one most often: that is what was in flight.
        nth_last: if rng.chance(60) {
            0
        } else {
            rng.below(point.window as u64) as usize
        },
        unit_bytes: *rng.pick(&TEAR_BYTES),
        seed: rng.bits(),
    });
    Plan {
        point: point.at,
        survives,
        tear,
    }
}

/// How one state is made.
#[derive(Debug, Clone)]
struct Plan {
    point: usize,
    survives: Survives,
    tear: Option<Tear>,
}

/// Which events of the window reach the medium.
#[derive(Debug, Clone)]
enum Survives {
    All,
    /// None but the last event.
    Least,
    /// Those whose bit is set, oldest first.
    Mask(u64),
    Percent {
        percent: u64,
        seed: u64,
    },
}

/// Which write reaches the medium in part.
#[derive(Debug, Clone)]
struct Tear {
    nth_last: usize,
    unit_bytes: u64,
    seed: u64,
}

/// What one failure leaves.
pub struct CrashState {
    /// The files.
    pub disk: Disk,
    /// The newest ack before the failure, if any.
    pub acked: Option<u64>,
    /// The point: number of events before the failure.
    pub point: usize,
    plan: Plan,
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "crash after event {}, unflushed: {:?}",
            self.point, self.plan.survives
        )?;
        if let Some(tear) = &self.plan.tear {
            write!(f, ", {:?}", tear)?;
        }
        Ok(())
    }
}

/// The states of a recording, in the order of their points.
pub struct States<'a> {
    recording: &'a Recording,
    at: usize,
    /// What is flushed before `at`.
    flushed: Disk,
    window: Window,
    acked: Option<u64>,
    /// Still to do, the next one last.
    plans: Vec<Plan>,
}

impl States<'_> {
    /// How many states are still to come.
    pub fn remaining(&self) -> usize {
        self.plans.len()
    }

    fn advance(&mut self, point: usize) {
        let events = &self.recording.events;
        let mut window = std::mem::take(&mut self.window);
        while self.at < point {
            window.advance(events, self.at, |durable| {
                self.flushed.apply(&events[durable])
            });
            if let Event::Ack(mark) = events[self.at] {
                self.acked = Some(mark);
            }
            self.at += 1;
        }
        self.window = window;
    }

    /// `TESTKIT-1`: the flushed part, and of the window what the plan lets survive.
    fn materialise(&self, plan: &Plan) -> Disk {
        let (mut disk, events) = (self.flushed.clone(), &self.recording.events);
        let mut rng = match plan.survives {
            Survives::Percent { seed, .. } => Rng::new(seed),
            _ => Rng::new(0),
        };
        let mut severed: HashSet<&FileName> = HashSet::new();
        for (position, index) in self.window.events().enumerate() {
            let (event, is_last) = (&events[index], index + 1 == plan.point);
            let survives = match plan.survives {
                Survives::All => true,
                Survives::Least => is_last,
                Survives::Mask(mask) => mask >> position & 1 == 1,
                Survives::Percent { percent, .. } => rng.chance(percent),
            };
            let file = file_of(event).expect("a window holds changes of files");
            let is_torn = plan
                .tear
                .as_ref()
                .filter(|tear| position + 1 + tear.nth_last == self.window.len());
            if severed.contains(file) {
                continue;
            }
            match (survives, is_torn) {
                (_, Some(tear)) => {
                    let mut rng = Rng::new(tear.seed);
                    disk.apply_torn(event, tear.unit_bytes, || rng.chance(50));
                }
                (true, None) => disk.apply(event),
                // Names change in order: what comes after a lost one is lost with it.
                (false, None) if matches!(event, Event::Create { .. } | Event::Delete { .. }) => {
                    severed.insert(file);
                }
                (false, None) => {}
            }
        }
        disk
    }
}

impl Iterator for States<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        let plan = self.plans.pop()?;
        self.advance(plan.point);
        let disk = self.materialise(&plan);
        Some(CrashState {
            disk,
            acked: self.acked,
            point: plan.point,
            plan,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Payload;
    use std::collections::BTreeSet;

    fn write(file: &str, offset_bytes: u64, bytes: &[u8]) -> Event {
        Event::Write {
            file: file.into(),
            offset_bytes,
            bytes: Payload::of(bytes),
        }
    }

    fn flush(file: &str, covers: usize) -> Event {
        Event::Flush {
            file: file.into(),
            covers,
        }
    }

    /// All states, as `(ack, content of file f or "-")`.
    fn outcomes(events: Vec<Event>) -> BTreeSet<(Option<u64>, String)> {
        let recording = Recording { events };
        let content = |state: CrashState| {
            let bytes = state
                .disk
                .find("f")
                .map_or(b"-".to_vec(), |image| image.to_vec());
            (
                state.acked,
                String::from_utf8(bytes).unwrap().replace('\0', "."),
            )
        };
        recording.states(0, 7, 500).map(content).collect()
    }

    fn set(expected: &[(Option<u64>, &str)]) -> BTreeSet<(Option<u64>, String)> {
        expected
            .iter()
            .map(|(acked, content)| (*acked, content.to_string()))
            .collect()
    }

    /// `TESTKIT-1`.
    #[test]
    fn flushed_writes_stay_and_others_may() {
        let create = Event::Create { file: "f".into() };
        let events = vec![
            create,
            write("f", 0, b"a"),
            flush("f", 2),
            write("f", 1, b"b"),
            Event::Ack(1),
        ];
        // Before the flush even the name may be lost.
        let expected = [
            (None, "-"),
            (None, ""),
            (None, "a"),
            (None, "ab"),
            (Some(1), "a"),
            (Some(1), "ab"),
        ];
        assert_eq!(outcomes(events), set(&expected));
    }

    #[test]
    fn a_flush_covers_only_what_ended_before_it_began() {
        let create = Event::Create { file: "f".into() };
        let events = vec![
            create,
            write("f", 0, b"a"),
            write("f", 1, b"b"),
            flush("f", 2),
            Event::Ack(1),
        ];
        let acked: BTreeSet<_> = outcomes(events)
            .into_iter()
            .filter(|(acked, _)| acked.is_some())
            .collect();
        assert_eq!(acked, set(&[(Some(1), "a"), (Some(1), "ab")]));
    }

    #[test]
    fn names_are_lost_in_order_and_kept_by_a_directory_sync() {
        let create = Event::Create { file: "f".into() };
        let delete = Event::Delete {
            file: "f".into(),
            durable: false,
        };
        let sync = Event::SyncNames {
            directory: "".into(),
        };
        let start = vec![create.clone(), write("f", 0, b"a"), flush("f", 2)];
        let lost = [
            start.clone(),
            vec![delete.clone(), create, write("f", 0, b"b"), Event::Ack(1)],
        ]
        .concat();
        let acked: BTreeSet<_> = outcomes(lost)
            .into_iter()
            .filter(|(acked, _)| acked.is_some())
            .collect();
        assert_eq!(
            acked,
            set(&[
                (Some(1), "a"),
                (Some(1), "-"),
                (Some(1), ""),
                (Some(1), "b")
            ])
        );
        let kept = [
            start,
            vec![write("f", 1, b"x"), delete, sync, Event::Ack(1)],
        ]
        .concat();
        let acked: BTreeSet<_> = outcomes(kept)
            .into_iter()
            .filter(|(acked, _)| acked.is_some())
            .collect();
        assert_eq!(acked, set(&[(Some(1), "-")]));
    }

    #[test]
    fn writes_tear_at_sectors_and_pages() {
        let create = Event::Create { file: "f".into() };
        let events = vec![create, flush("f", 1), write("f", 500, &[b'x'; 5000])];
        let states = outcomes(events);
        let torn = |from: usize, to: usize| {
            states.iter().any(|(_, s)| {
                s.len() > to && s[from..to].bytes().all(|b| b == b'x') && s.contains("x.")
            })
        };
        assert!(
            torn(500, 512) && torn(4096, 5500 - 1),
            "{} states",
            states.len()
        );
        assert!(
            states
                .iter()
                .all(|(_, s)| s == "-" || s.len() <= 5500 && !s[..s.len().min(500)].contains('x'))
        );
    }

    #[test]
    fn same_seed_same_states() {
        let events = (0..40).map(|i| write("f", i * 10, &[b'x'; 10])).collect();
        let recording = Recording { events };
        let labels = |seed| {
            recording
                .states(0, seed, 100)
                .map(|s| s.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(labels(1), labels(1)); // TESTKIT-3
        assert_ne!(labels(1), labels(2));
        assert_eq!(labels(1).len(), 100);
    }
}
