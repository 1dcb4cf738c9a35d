//! The figures: each of the papers' again, from the user's own records, and some beside them.
//!
//! A figure is a few charts and three sentences: what the paper found, what is found here (computed
//! from the records, never written down beforehand), why they may differ. A figure without records
//! is named as missing, with the command that measures it.
//!
//! * `FIGURE-1` Every figure of [`all`] is there: drawn when its records exist, else with what
//!   would make it.

pub mod chart;
pub mod scale;
pub mod svg;

mod age;
mod beside;
mod cluster;
mod dbfs;
mod figure;
mod layout;

pub(crate) use age::crossings;
pub use figure::{Figure, dark_style};

use crate::data::Data;

/// All figures, in the order of the report.
pub fn all(data: &Data) -> Vec<Figure> {
    let mut figures = age::figures(data);
    figures.extend(beside::figures(data));
    figures.extend(dbfs::figures(data));
    figures.extend(cluster::figures(data));
    figures
}
