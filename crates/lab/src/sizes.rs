//! How large objects are: distributions with a given mean, drawn from the seed of the run.

use crate::error::{Error, Result};
use std::f64::consts::TAU;

/// The random numbers of a run: the same seed, the same run.
pub type Random = fastrand::Rng;

/// A distribution of sizes around a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Constant,
    /// Half to one and a half of the mean.
    Uniform,
    /// Logarithms normal with deviation 1: many small ones, few large ones; between 1/16 and 16 of
    /// the mean.
    Lognormal,
}

impl Sizes {
    /// The distribution of this name.
    pub fn parse(name: &str) -> Result<Sizes> {
        match name {
            "constant" => Ok(Sizes::Constant),
            "uniform" => Ok(Sizes::Uniform),
            "lognormal" => Ok(Sizes::Lognormal),
            _ => Err(Error::failed(format!(
                "'{name}' is no distribution of sizes; there are constant, uniform and lognormal"
            ))),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sizes::Constant => "constant",
            Sizes::Uniform => "uniform",
            Sizes::Lognormal => "lognormal",
        }
    }

    /// A size, ≥ 1, with this mean.
    pub fn draw(self, mean_bytes: u64, random: &mut Random) -> u64 {
        let size = match self {
            Sizes::Constant => mean_bytes,
            Sizes::Uniform => mean_bytes / 2 + random.u64(0..=mean_bytes),
            Sizes::Lognormal => {
                // Box and Muller; the mean of exp(N(-1/2, 1)) is 1.
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                let normal = radius * (TAU * random.f64()).cos();
                let factor = (normal - 0.5).exp().clamp(1.0 / 16.0, 16.0);
                (mean_bytes as f64 * factor) as u64
            }
        };
        size.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_what_was_asked_for() {
        for sizes in [Sizes::Constant, Sizes::Uniform, Sizes::Lognormal] {
            let mut random = Random::with_seed(3);
            let sum: u64 = (0..20_000).map(|_| sizes.draw(1 << 20, &mut random)).sum();
            let mean = sum as f64 / 20_000.0 / f64::from(1 << 20);
            assert!((0.97..1.03).contains(&mean), "{}: {mean}", sizes.name());
            assert_eq!(Sizes::parse(sizes.name()), Ok(sizes));
        }
    }
}
