//! Sizes and times as people write and read them.
//!
//! # Invariants
//! * `CLI-2` What is read is exact or refused: no float, no rounding of a whole number of bytes or
//!   nanoseconds, no overflow. What is shown is rounded down to what fits the eye.

/// A moment in UTC, whole seconds.
pub(crate) use larder::utc::show as show_time;

/// The bytes that a text names: `4096`, `256M`, `10GiB`, `1.5T`. `K`, `M`, `G`, `T`, `P` and `KiB`
/// … are powers of 1024; `KB` … are powers of 1000. The error says what is possible.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let factor = |unit: &str| {
        let unit = unit.to_ascii_uppercase();
        let mut letters = unit.chars();
        let power = match letters.next() {
            None => return Some(1),
            Some('B') if letters.as_str().is_empty() => return Some(1),
            Some(letter) => u32::try_from("KMGTP".find(letter)?).ok()? + 1,
        };
        match letters.as_str() {
            "" | "IB" => Some(1024_u128.pow(power)),
            "B" => Some(1000_u128.pow(power)),
            _ => None,
        }
    };
    let bytes = parse_scaled(text, factor)
        .ok_or_else(|| format!("'{text}' is no size; write it like 4096, 256M, 10GiB or 1.5T"))?;
    u64::try_from(bytes).map_err(|_| format!("'{text}' is more than 16 EiB; write less"))
}

/// The nanoseconds that a text names: `90s`, `15min`, `1h`, `30d`, `2w`, `2y` (a year has 365
/// days). The error says what is possible.
pub(crate) fn parse_time(text: &str) -> Result<i64, String> {
    let factor = |unit: &str| {
        let seconds: u128 = match unit {
            "us" => return Some(1_000),
            "ms" => return Some(1_000_000),
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            "y" => 365 * 86_400,
            _ => return None,
        };
        Some(seconds * 1_000_000_000)
    };
    let ns = parse_scaled(text, factor)
        .ok_or_else(|| format!("'{text}' is no time; write it like 90s, 15min, 1h, 30d or 2y"))?;
    i64::try_from(ns).map_err(|_| format!("'{text}' is more than 292 years; write less"))
}

/// The same; a number alone is seconds, as for timeout(1).
pub(crate) fn parse_wait(text: &str) -> Result<i64, String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => parse_time(&format!("{text}s")),
        false => parse_time(text),
    }
}

/// The permission bits that an octal text names, `0` to `7777`.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("'{text}' is no mode; write it in octal, like 755"))
}

/// Bytes for people, with a power of 1024 and at most one decimal: `512 B`, `1.5 GiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = bytes.ilog2() / 10;
    let unit = UNITS[power as usize - 1];
    let whole = bytes >> (10 * power);
    let tenths = ((u128::from(bytes) * 10) >> (10 * power)) % 10;
    if whole < 100 {
        format!("{whole}.{tenths} {unit}")
    } else {
        format!("{whole} {unit}")
    }
}

/// The share of `part` in `whole`, percent, rounded up as `df` does; 0 of nothing is 0.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let share = (u128::from(part) * 100).div_ceil(u128::from(whole));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// A decimal number times the factor of its unit; `None` when it is malformed, not whole, or ≥
/// 2¹²⁷.
fn parse_scaled(text: &str, factor: impl Fn(&str) -> Option<u128>) -> Option<u128> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // 18 digits keep every product below within 128 bits.
    if whole.is_empty() || whole.len() > 20 || fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let factor = factor(unit.trim_start())?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = whole.parse::<u128>().ok()?.checked_mul(factor)?;
    let part = fraction.parse::<u128>().ok()?.checked_mul(factor)?;
    // A fraction of the unit is cut to whole bytes: 1.3K is 1331.
    whole.checked_add(part / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("256M", 256 << 20),
            ("256MiB", 256 << 20),
            ("256mb", 256_000_000),
            ("10GiB", 10 << 30),
            ("1.5T", 3 << 39),
            ("1.3K", 1331),
            ("16 P", 16 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "CLI-2: {text}");
        }
        for text in [
            "",
            "M",
            "-1",
            "1,5G",
            "1.G",
            ".5G",
            "1.2.3",
            "5X",
            "5Kb5",
            "1e3",
            "1.0000000000000000001K",
        ] {
            assert!(parse_size(text).is_err(), "CLI-2: {text}");
        }
        assert!(parse_size("18446744073709551616").is_err(), "CLI-2");
        assert!(
            parse_size("99999P").unwrap_err().contains("16 EiB"),
            "CLI-2"
        );
    }

    #[test]
    fn times_are_exact() {
        for (text, seconds) in [
            ("90s", 90),
            ("15min", 900),
            ("15m", 900),
            ("1h", 3600),
            ("1.5h", 5400),
            ("30d", 2_592_000),
            ("2y", 63_072_000),
        ] {
            assert_eq!(
                parse_time(text),
                Ok(seconds * 1_000_000_000),
                "CLI-2: {text}"
            );
        }
        assert_eq!(parse_time("5ms"), Ok(5_000_000));
        for text in ["", "90", "h", "1 fortnight", "-1s"] {
            assert!(parse_time(text).is_err(), "CLI-2: {text}");
        }
        assert!(parse_time("300y").unwrap_err().contains("292"), "CLI-2");
    }

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (102_400, "100 KiB"),
            ((1 << 20) - 1, "1023 KiB"),
            (3 << 39, "1.5 TiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn modes_and_shares() {
        assert_eq!(parse_mode("0755"), Ok(0o755));
        assert!(parse_mode("9").is_err() && parse_mode("10000").is_err());
        assert_eq!(
            [
                percent(0, 0),
                percent(1, 1000),
                percent(1, 1),
                percent(u64::MAX, u64::MAX)
            ],
            [0, 1, 100, 100]
        );
    }
}
