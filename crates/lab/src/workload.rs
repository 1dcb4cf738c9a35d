//! Workloads: what is done to a subject, and when it is measured.
//!
//! * `WORKLOAD-1` Every object that is read is compared with what was written; what differs ends the run
//!   ([`crate::error::Kind::Lost`]).
//! * `WORKLOAD-2` What is done, in which order, with which bytes, follows from the seed. With several writers, what
//!   they do at the same time does; who is first does not.
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

/// Free objects that a volume must have room for, for a run to mean something: \[BLOB\] found 40 to be bad, 400 fine.
pub const FREE_POOL_OBJECTS_MIN: u64 = 40;

/// A subject with all that a workload needs beside it.
pub struct Work<'a> {
    /// What is measured.
    pub subject: &'a mut Subject,
    /// The bytes of the objects.
    pub pattern: Pattern,
    /// What is random.
    pub random: Random,
    /// Somebody asked to stop.
    pub stop: &'a AtomicBool,
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
    /// [`Kind::Stopped`] if somebody asked to stop.
    pub fn check_stop(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new(
                Kind::Stopped,
                "stopped; the same command goes on with the next case",
            )),
            false => Ok(()),
        }
    }

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
