//! Times for people, in UTC: the one place that knows the calendar, and leaves it to a library.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A time in UTC, whole seconds: `2026-11-20T10:00:00Z`. `at_ns` counts from 1970.
pub fn show(at_ns: i64) -> String {
    date_time(at_ns).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Nanoseconds since 1970 of `2026-11-20`, its first moment; `2026-11-20T10:00` with or without
/// seconds and their parts, in UTC whether or not it ends with `Z`; `2026-11-20T10:00:00+01:00`. A
/// space may stand for the `T`. Times beyond the years 1677 to 2262 are the ends of those; `None`:
/// not well formed.
pub fn parse(text: &str) -> Option<i64> {
    let at = match text.parse::<Timestamp>() {
        Ok(at) => at,
        Err(_) => {
            let time: DateTime = text.strip_suffix('Z').unwrap_or(text).parse().ok()?;
            TimeZone::UTC.to_timestamp(time).ok()?
        }
    };
    let at_ns = at.as_nanosecond();
    Some(i64::try_from(at_ns).unwrap_or(if at_ns < 0 { i64::MIN } else { i64::MAX }))
}

/// Months from the beginning of the year 0 to a time, nanoseconds since 1970, in UTC.
pub fn months(at_ns: i64) -> i64 {
    let date = date_time(at_ns).date();
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

fn date_time(at_ns: i64) -> DateTime {
    // Every i64 is within what a timestamp can be: the years 1677 to 2262.
    let at = Timestamp::from_nanosecond(at_ns.into()).unwrap_or_default();
    TimeZone::UTC.to_datetime(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (at_ns, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_827_696_000_000_000, "2000-02-29T12:34:56Z"),
            (1_795_168_800_000_000_000, "2026-11-20T10:00:00Z"),
            (i64::MAX, "2262-04-11T23:47:16Z"),
            (i64::MIN, "1677-09-21T00:12:43Z"),
        ] {
            assert_eq!(show(at_ns), text);
        }
        assert_eq!(months(0), 1970 * 12);
        assert_eq!(months(-1), 1970 * 12 - 1);
        assert_eq!(months(951_827_696_000_000_000), 2000 * 12 + 1);
    }

    #[test]
    fn times_are_read_with_and_without_a_zone() {
        let ten = Some(1_795_168_800_000_000_000);
        for text in [
            "2026-11-20T10:00:00Z",
            "2026-11-20T10:00Z",
            "2026-11-20 10:00",
            "2026-11-20T11:00:00+01:00",
            "2026-11-20T10:00:00.000",
        ] {
            assert_eq!(parse(text), ten, "{text}");
        }
        assert_eq!(parse("1969-12-31"), Some(-86_400_000_000_000));
        assert_eq!(parse("9999-01-01"), Some(i64::MAX));
        assert_eq!(parse("1000-01-01"), Some(i64::MIN));
        for bad in ["", "2026", "2026-13-01", "2025-02-29", "2026-11-20T25:00"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
