//! What stands beside counts of fragments, so that they are read rightly: how full the volumes
//! were, what a system counts itself, and what the markers did not see.

use crate::data::{Selection, system_name};
use crate::figures::figure::sentence;
use crate::figures::scale::{Unit, say};
use crate::statistics;

/// The median of another measure in the cases of `used`, of one system.
fn beside(all: &Selection<'_>, used: &Selection<'_>, backend: &str, measure: &str) -> Option<f64> {
    let there = used.backend(backend);
    let is_of_case = |record: &crate::results::Record| {
        let same = |other: &crate::results::Record| {
            (&other.experiment, &other.case, other.round, other.age)
                == (&record.experiment, &record.case, record.round, record.age)
        };
        there.records().any(same)
    };
    let found = all.backend(backend).measure(measure).filter(is_of_case);
    let values: Vec<f64> = match measure {
        LIVE => found
            .records()
            .filter_map(|record| Some(100.0 * record.value / record.number("volume_bytes")?))
            .collect(),
        _ => found.values(),
    };
    statistics::median(&values).map(|median| median.value)
}

const LIVE: &str = "live_bytes";

/// How much of the volume the objects fill, from most to least: the occupancy is a share of what
/// each system says that it can take, which is less.
pub(super) fn filled(all: &Selection<'_>, used: &Selection<'_>) -> Option<String> {
    let share = |name: String| Some((beside(all, used, &name, LIVE)?, name));
    let mut shares: Vec<(f64, String)> = used.backends().into_iter().filter_map(share).collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let said: Vec<String> = shares
        .iter()
        .map(|(share, name)| format!("{} {}", system_name(name), say(*share, Unit::Percent)))
        .collect();
    let text = || format!("objects fill, of the whole volume: {}", said.join(", "));
    (!said.is_empty()).then(|| sentence(&text()))
}

/// Where a system that counts its own fragments counts others than the markers.
pub(super) fn own_count(all: &Selection<'_>, used: &Selection<'_>) -> Option<String> {
    let plain = |value: f64| say(value, Unit::Plain);
    let differing: Vec<String> = used
        .backends()
        .iter()
        .filter_map(|name| {
            let own = beside(all, used, name, "fragments_own_mean")?;
            let found = used.backend(name).median()?.value;
            let differs = plain(own) != plain(found);
            differs.then(|| format!("{} itself counts {}", system_name(name), plain(own)))
        })
        .collect();
    let text = || {
        format!(
            "{}: the markers, which are looked for on the device, also see where the filesystem \
             below cut its segment file",
            differing.join(", ")
        )
    };
    (!differing.is_empty()).then(|| sentence(&text()))
}

/// Whose markers were not all found, and why.
pub(super) fn unseen(all: &Selection<'_>, used: &Selection<'_>) -> Option<String> {
    let unseen: Vec<String> = used
        .backends()
        .iter()
        .filter_map(|name| {
            let share = beside(all, used, name, "markers_found_share")?;
            let said = say(100.0 * share, Unit::Percent);
            (share < 1.0).then(|| format!("{} {said}", system_name(name)))
        })
        .collect();
    let text = || {
        format!(
            "of the markers were found: {}, all of the others; one that the edge of a database's \
             page cuts in two is not seen",
            unseen.join(", ")
        )
    };
    (!unseen.is_empty()).then(|| sentence(&text()))
}
