//! What is measured for advice when there is nothing else: rows, files and Larder in the place
//! itself, and volumes that become full. All of it takes about three minutes on an idle machine;
//! where it would take longer, later rounds are left out.

use crate::advise::settings::trials;
use crate::backend::Spec;
use crate::error::Result;
use crate::run::{Experiment, Request};
use crate::sizes::Sizes;
use std::path::Path;

/// One part of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The name of its run.
    pub name: &'static str,
    /// Which share of the time it may use together with those before it, 0 to 1.
    pub until_share: f64,
    /// What is measured.
    pub request: Request,
}

/// The plan for a directory.
pub fn plan(place: &Path) -> Result<Vec<Part>> {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let in_place = |kind: &str| format!("{kind}:{}", place.display());
    let specs = |names: &[String]| -> Result<Vec<Spec>> {
        names.iter().map(|name| Spec::parse(name)).collect()
    };
    let sizes = |names: &[String], objects: &[u64], volume_bytes| -> Result<Request> {
        let mut request = Request::new(Experiment::BreakEven)?;
        request.backends = specs(names)?;
        request.objects = objects.to_vec();
        request.volumes = vec![volume_bytes];
        request.occupancies = vec![0.05];
        request.reads_max = 300;
        request.rounds = 4;
        Ok(request)
    };
    let stores = ["sqlite", "dir", "larder"].map(in_place);
    let mut rows = sizes(&trials(&in_place("larder")), &[512, KIB, 2 * KIB], 16 * MIB)?;
    // Few and exact: the threshold is in between.
    rows.sizes = vec![Sizes::Constant];
    rows.occupancies = vec![0.01];
    rows.ages = vec![0.0];
    rows.is_warm = false;
    let small = sizes(&stores, &[4 * KIB, 16 * KIB], 16 * MIB)?;
    let large = sizes(&stores, &[64 * KIB, 256 * KIB, MIB], 128 * MIB)?;
    let mut volume = Request::new(Experiment::Volume)?;
    volume.backends = specs(&["ext4".to_owned(), "larder".to_owned()])?;
    // On the smaller one at 90 % about 60 objects fit into what Larder leaves free.
    volume.objects = vec![128 * KIB];
    volume.volumes = vec![160 * MIB, 320 * MIB];
    volume.occupancies = vec![0.5, 0.9];
    volume.reads_max = 50;
    volume.rounds = 3;
    let part = |name, until_share, request| Part {
        name,
        until_share,
        request,
    };
    Ok(vec![
        part("rows", 0.2, rows),
        part("small", 0.4, small),
        part("large", 0.65, large),
        part("volume", 1.0, volume),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_makes_sense() {
        let parts = plan(Path::new("/srv")).unwrap();
        for part in &parts {
            part.request.check().unwrap();
        }
        assert!(parts.is_sorted_by(|a, b| a.until_share < b.until_share));
        assert_eq!(parts.last().unwrap().until_share, 1.0);
    }
}
