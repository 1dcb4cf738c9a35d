//! What every part of `bench mount` needs.

use std::path::{Path, PathBuf};

use crate::figures::Figures;
use crate::places::Place;
use crate::setting::{Options, Setting, alternate};
use xtask::Outcome;
use xtask::mounts::Larder;

/// What every part needs.
pub struct Bench<'a> {
    pub setting: &'a Setting,
    pub larder: Larder,
    pub rounds: usize,
}

impl Bench<'_> {
    /// How the benchmark was asked for.
    pub fn options(&self) -> &Options {
        &self.setting.options
    }

    /// What a database has grown by before it is measured, where a part says nothing else, bytes.
    pub fn grown_bytes(&self) -> u64 {
        self.options().choose(128 << 20, 256 << 20, 512 << 20)
    }

    /// A mounted database and a plain directory; with `--stub` also a filesystem in memory.
    pub fn places(&self, at: &Path, grown_bytes: u64) -> Result<Vec<Place>, String> {
        let mut places = vec![
            Place::larder(&self.larder, at, grown_bytes)?,
            Place::plain(at)?,
        ];
        if self.options().is_stub {
            places.push(Place::floor(at)?);
        }
        self.add_rings(&mut places, at, grown_bytes)?;
        Ok(places)
    }

    /// With `--rings`: both that are served by us, with requests by io_uring.
    pub fn add_rings(&self, places: &mut Vec<Place>, at: &Path, grown_bytes: u64) -> Outcome {
        if self.options().has_rings {
            places.push(Place::larder_ring(&self.larder, at, grown_bytes)?);
            places.push(Place::floor_ring(at)?);
        }
        Ok(())
    }

    /// The same, and the filesystem in memory always.
    pub fn places_and_floor(&self, at: &Path, grown_bytes: u64) -> Result<Vec<Place>, String> {
        let mut places = self.places(at, grown_bytes)?;
        if !self.options().is_stub {
            places.push(Place::floor(at)?);
        }
        Ok(places)
    }

    /// Every place has its turn in every round: `turn(place's number, place, round)`.
    pub fn alternate(
        &self,
        places: &mut [Place],
        mut turn: impl FnMut(usize, &mut Place, usize) -> Outcome,
    ) -> Outcome {
        alternate(self.rounds, places.len(), |round, index| {
            turn(index, &mut places[index], round)
        })
    }

    /// The program of JuiceFS, if it is measured beside.
    pub fn juicefs(&self) -> Option<PathBuf> {
        self.options().juicefs.as_ref().map(PathBuf::from)
    }
}

/// A table for these places.
pub fn figures(unit: &str, places: &[Place]) -> Figures {
    Figures::new(unit, places.iter().map(|place| place.name).collect())
}
