//! Where objects lie: stretches of a device, in the order of their content.

use crate::model::Fragment;

/// The places of one object, in the order of its content; neighbours that touch are one fragment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    fragments: Vec<Fragment>,
}

impl Layout {
    /// Adds what follows in the content.
    pub fn push(&mut self, offset_bytes: u64, length_bytes: u64) {
        match self.fragments.last_mut() {
            Some(last) if last.offset_bytes + last.length_bytes == offset_bytes => {
                last.length_bytes += length_bytes;
            }
            _ => self.push_apart(offset_bytes, length_bytes),
        }
    }

    /// Adds what follows in the content, but not on the device, whatever the offsets say.
    pub fn push_apart(&mut self, offset_bytes: u64, length_bytes: u64) {
        self.fragments.push(Fragment {
            offset_bytes,
            length_bytes,
        });
    }

    /// Adds bytes that lie behind the last ones, up to `end_bytes`; pages may have other things
    /// between them.
    pub fn extend_to(&mut self, end_bytes: u64) {
        if let Some(last) = self.fragments.last_mut() {
            last.length_bytes = last
                .length_bytes
                .max(end_bytes.saturating_sub(last.offset_bytes));
        }
    }

    /// The fragments.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }
}

/// Fragments per object of many objects.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fragments {
    /// Objects that were counted.
    pub object_count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The worst object.
    pub max: u64,
    /// Of two blocks (4 KiB) that follow one another in an object, the share that does so on the
    /// device (Smith, Seltzer: "File System Aging", 1997); 1 when nothing has two.
    pub layout_score: f64,
}

impl Fragments {
    /// Counts; objects without any fragment do not count.
    pub fn of(layouts: &[Layout]) -> Fragments {
        let mut counts: Vec<u64> = Vec::with_capacity(layouts.len());
        let (mut pairs, mut broken) = (0, 0);
        for layout in layouts.iter().filter(|layout| !layout.fragments.is_empty()) {
            let count = layout.fragments.len() as u64;
            let bytes: u64 = layout.fragments.iter().map(|part| part.length_bytes).sum();
            counts.push(count);
            let object_pairs = bytes.div_ceil(4096).saturating_sub(1);
            pairs += object_pairs;
            broken += (count - 1).min(object_pairs);
        }
        counts.sort_unstable();
        let at = |share: f64| match counts.len() {
            0 => 0,
            len => counts[((len as f64 * share).ceil() as usize).clamp(1, len) - 1],
        };
        let score = |pairs: u64| (pairs - broken) as f64 / pairs as f64;
        Fragments {
            object_count: counts.len() as u64,
            mean: counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            layout_score: if pairs == 0 { 1.0 } else { score(pairs) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_counted() {
        let mut whole = Layout::default();
        whole.push(0, 4096);
        whole.push(4096, 4096);
        let mut broken = Layout::default();
        for place in [0, 8192, 4096, 20480] {
            broken.push(place, 4096);
        }
        let counted = Fragments::of(&[whole, broken, Layout::default()]);
        assert_eq!(counted.object_count, 2);
        assert_eq!(
            (counted.mean, counted.p50, counted.p99, counted.max),
            (2.5, 1, 4, 4)
        );
        assert_eq!(counted.layout_score, 0.25);
        assert_eq!(Fragments::of(&[]).layout_score, 1.0);
    }
}
