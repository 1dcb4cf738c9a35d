//! Descriptors of this process: each worker has an io_uring, which is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process open `count` more files, as far as the system allows it: not all that it
/// allows, which programs that this one starts might each close one by one.
pub(super) fn allow_more(count: usize) {
    let raised = raised(getrlimit(Resource::Nofile), count as u64);
    if let Some(raised) = raised
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!("the number of open files stays limited: {error}");
    }
}

/// `None`: it is as high as it can be.
fn raised(limit: Rlimit, count: u64) -> Option<Rlimit> {
    let current = limit.current?;
    let wanted = current.saturating_add(count);
    let most = limit.maximum.unwrap_or(wanted).min(wanted);
    (most > current).then_some(Rlimit {
        current: Some(most),
        ..limit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_allowed_and_no_more_than_may_be() {
        let raised = |current, maximum| {
            let limit = Rlimit { current, maximum };
            raised(limit, 500).map(|raised| (raised.current, raised.maximum == maximum))
        };
        assert_eq!(raised(Some(1024), Some(4096)), Some((Some(1524), true)));
        assert_eq!(raised(Some(1024), None), Some((Some(1524), true)));
        assert_eq!(raised(Some(1024), Some(1100)), Some((Some(1100), true)));
        assert_eq!(raised(Some(1024), Some(1024)), None);
        assert_eq!(raised(None, None), None);
    }
}
