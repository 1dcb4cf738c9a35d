//! The laboratory: file or BLOB? How stores of objects age, measured on the machine it runs on.
//!
//! # Words
//! A *backend* is a store of whole objects under test. An *experiment* is one question (`age`,
//! `dbfs`, …). A *case* is one set of parameters of an experiment on one backend. A *run* is a
//! directory of [`results`]: a header and records that are only ever appended. *Storage age* is the
//! bytes of objects that once existed and are gone, divided by the bytes that live (\[BLOB\]).

pub mod advise;
pub mod age;
pub mod backend;
pub mod break_even;
pub mod compare;
pub mod data;
pub mod error;
pub mod figures;
pub mod measure;
pub mod model;
pub mod papers;
pub mod pattern;
mod process;
pub mod raster;
pub mod report;
pub mod results;
pub mod run;
pub mod sizes;
pub mod statistics;
pub mod volume;
pub mod workload;
