//! Names and messages as they may go to people: nothing in them drives a terminal, hides, or turns
//! the order of what stands beside it.
//!
//! # Invariants
//! * `CLI-41` What goes to a terminal, to stderr or into a log has passed [`visible`] or
//!   [`visible_bytes`], but for the content of files. A control character becomes `\x1b`; another
//!   of Unicode that is no glyph but acts on text becomes `\u{202e}`; a byte that is not UTF-8
//!   becomes `\xff`. What a program reads is exact: stdout that is no terminal, JSON, CSV, and what
//!   ends with a zero byte.

use std::fmt::Write;

/// One line of text, made visible.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        push(&mut shown, character);
    }
    shown
}

/// The same of a name, which may be no UTF-8.
pub(crate) fn visible_bytes(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        chunk.valid().chars().for_each(|one| push(&mut shown, one));
        chunk
            .invalid()
            .iter()
            .for_each(|byte| escape(&mut shown, format_args!("\\x{byte:02x}")));
    }
    shown
}

fn push(shown: &mut String, character: char) {
    match character {
        '\n' => shown.push_str("\\n"),
        '\t' => shown.push_str("\\t"),
        one if one.is_ascii_control() => {
            escape(shown, format_args!("\\x{:02x}", u32::from(one)));
        }
        one if acts(one) => escape(shown, format_args!("\\u{{{:x}}}", u32::from(one))),
        one => shown.push(one),
    }
}

fn escape(shown: &mut String, text: std::fmt::Arguments<'_>) {
    let written = shown.write_fmt(text);
    debug_assert!(written.is_ok(), "a string takes everything");
}

/// Characters that are not shown but do something: C1 controls, marks of direction, separators of
/// lines, what has no width, and tags.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_shown() {
        for (text, expected) in [
            ("a\x1b[2J\u{7f}", "a\\x1b[2J\\x7f"),
            ("a\nb\tc\r", "a\\nb\\tc\\x0d"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}txt.exe", "a\\u{202e}txt.exe"),
            ("\u{2066}\u{2069}\u{200f}", "\\u{2066}\\u{2069}\\u{200f}"),
            // Emoji are joined by U+200D, and other scripts need it.
            (
                "日本 é \u{1f468}\u{200d}\u{1f467}",
                "日本 é \u{1f468}\u{200d}\u{1f467}",
            ),
        ] {
            assert_eq!(visible(text), expected, "CLI-41");
            assert_eq!(visible_bytes(text.as_bytes()), expected, "CLI-41");
            assert_eq!(visible(expected), expected, "CLI-41: once is enough");
        }
        assert_eq!(
            visible_bytes(b"a\xff\x9b\xc3"),
            "a\\xff\\x9b\\xc3",
            "CLI-41"
        );
    }
}
