//! Shell patterns for names (glob(7)), on bytes: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a
//! character that stands for itself.

/// Whether `name` matches `pattern` as a whole. A `[` that is never closed stands for itself.
/// Cost: O(pattern × name) at worst, no recursion.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at_pattern, mut at_name) = (0, 0);
    // Where to go on after the last `*` took one more byte.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at_pattern) == Some(&b'*') {
            retry = Some((at_pattern + 1, at_name));
            at_pattern += 1;
            continue;
        }
        let step = match (pattern.get(at_pattern), name.get(at_name)) {
            (None, None) => return true,
            (Some(_), Some(&byte)) => match_one(&pattern[at_pattern..], byte),
            _ => None,
        };
        match (step, retry) {
            (Some(length), _) => {
                at_pattern += length;
                at_name += 1;
            }
            (None, Some((after_star, taken))) if taken < name.len() => {
                retry = Some((after_star, taken + 1));
                at_pattern = after_star;
                at_name = taken + 1;
            }
            (None, _) => return false,
        }
    }
}

/// The length of the pattern's first element if it matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', set @ ..] => match match_set(set, byte) {
            Some((is_in, length)) => is_in.then_some(length + 1),
            None => (byte == b'[').then_some(1),
        },
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Whether `byte` is in the set that `set` begins, and the length of the set with its `]`; `None`
/// when it is never closed.
fn match_set(set: &[u8], byte: u8) -> Option<(bool, usize)> {
    let is_negated = matches!(set.first(), Some(b'!' | b'^'));
    let first = usize::from(is_negated);
    let mut at = first;
    let mut is_in = false;
    loop {
        match set.get(at..)? {
            // A `]` in the first place stands for itself.
            [b']', ..] if at > first => return Some((is_in != is_negated, at + 1)),
            [low, b'-', high, ..] if *high != b']' => {
                is_in |= (*low..=*high).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= *literal == byte;
                at += 1;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, is_match) in [
            ("*", "", true),
            ("*", "a", true),
            ("*.jpg", "a.jpg", true),
            ("*.jpg", "a.jpeg", false),
            ("a*b*c", "axxbyybzc", true),
            ("a*b*c", "axxbyybz", false),
            ("?", "", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
            ("", "a", false),
            ("abc", "ab", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                is_match,
                "{pattern} {name}"
            );
        }
        assert!(matches(b"\xff*", b"\xff\xfe"));
        let (stars, name) = (b"*a".repeat(40), b"a".repeat(4000));
        assert!(
            !matches(&[&stars[..], b"b"].concat(), &name),
            "no exponential time"
        );
    }
}
