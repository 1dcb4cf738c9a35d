//! Workloads: what is done to a subject, and when it is measured.
//!
//! * `WORKLOAD-1` Every object that is read is compared with what was written; what differs ends
//!   the run ([`crate::error::Kind::Lost`]).
//! * `WORKLOAD-2` What is done, in which order, with which bytes, follows from the seed. With
//!   several writers, what they do at the same time does; who is first does not.
//!
//! Time is taken around calls of the backend only: making and comparing bytes does not count.

pub mod age;
pub mod cluster;
pub mod dbfs;
pub mod population;
pub mod trace;

use crate::backend::Subject;
use crate::error::{Error, Kind, Result};
use crate::pattern::Pattern;
use crate::sizes::Random;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Free objects that a volume must have room for, for a run to mean something: \[BLOB\] found 40 to
/// be bad, 400 fine.
pub const FREE_POOL_OBJECTS_MIN: u64 = 40;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Stop<'a> {
    /// Somebody asked to.
    pub asked: &'a AtomicBool,
    /// The time is over; `None`: it never is.
    pub deadline: Option<Instant>,
}

impl Stop<'_> {
    /// Whether it is time to.
    pub fn is_due(&self) -> bool {
        let is_over = |deadline| Instant::now() > deadline;
        self.asked.load(Ordering::Relaxed) || self.deadline.is_some_and(is_over)
    }

    /// [`Kind::Stopped`] if it is time to.
    pub fn check(&self) -> Result<()> {
        match self.is_due() {
            true => Err(Error::new(
                Kind::Stopped,
                "stopped; the same command goes on with the next case",
            )),
            false => Ok(()),
        }
    }
}

/// A subject with all that a workload needs beside it.
pub struct Work<'a> {
    /// What is measured.
    pub subject: &'a mut Subject,
    /// The bytes of the objects.
    pub pattern: Pattern,
    /// What is random.
    pub random: Random,
    /// When to stop.
    pub stop: Stop<'a>,
    /// Hears what share of the case is done.
    pub on_progress: &'a mut dyn FnMut(f64),
    /// Hears figures.
    pub on_figure: &'a mut dyn FnMut(Figure<'_>) -> Result<()>,
}

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure<'a> {
    /// Storage age.
    pub age: f64,
    /// Parameters beside those of the case.
    pub extra: &'a [(&'a str, String)],
    /// As in [`crate::results::Record::measure`].
    pub measure: &'a str,
    /// In the unit of the measure.
    pub value: f64,
}

impl Work<'_> {
    /// Several figures of one moment.
    pub fn figures(&mut self, age: f64, figures: Vec<(String, f64)>) -> Result<()> {
        self.figures_of(age, &[], figures)
    }

    /// The same with parameters beside those of the case.
    pub fn figures_of(
        &mut self,
        age: f64,
        extra: &[(&str, String)],
        figures: Vec<(String, f64)>,
    ) -> Result<()> {
        for (measure, value) in figures {
            (self.on_figure)(Figure {
                age,
                extra,
                measure: &measure,
                value,
            })?;
        }
        Ok(())
    }

    /// One figure.
    pub fn figure(&mut self, age: f64, measure: &str, value: f64) -> Result<()> {
        self.figures(age, vec![(measure.to_owned(), value)])
    }
}
