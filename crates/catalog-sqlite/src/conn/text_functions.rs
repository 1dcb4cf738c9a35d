//! SQLite's functions of text whose own time grows with the product of two lengths, in time that
//! grows with their sum: `instr`, `replace`, `trim`, `ltrim`, `rtrim`, `unhex`.
//!
//! One call is one step of SQLite's machine, which asks nobody meanwhile whether it should end; so
//! what a generated column, an index or a view of the user's may call must end by itself.
//!
//! # Invariants
//! * `SAFE-9` Each gives what SQLite's own does, for every type of value and bytes that are no
//!   UTF-8: an index that was made here is read by other programs, and theirs by us. *Guard*: the
//!   tests and a fuzz target compare them.
//!
//! They take values as SQLite's own do, by the same calls: numbers become text as SQLite writes
//! them, and the bytes of a blob are text as they are. The set of `trim` is *characters*: a byte,
//! or one from 0xC0 with all bytes 0x80 to 0xBF that follow it. Of two that fit, the first in the
//! set is taken, which matters where one is the beginning of another.

use crate::error::{Result, require_ok};
use memchr::memmem;
use rusqlite::{Connection, ffi};
use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};

/// A function as SQLite calls it.
type Function =
    unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);

/// Their names, numbers of arguments, what is trimmed, and who answers.
const FUNCTIONS: [(&CStr, c_int, Ends, Function); 10] = [
    (c"instr", 2, Ends::NONE, call_instr),
    (c"replace", 3, Ends::NONE, call_replace),
    (c"trim", 1, Ends::BOTH, call_trim),
    (c"trim", 2, Ends::BOTH, call_trim),
    (c"ltrim", 1, Ends::LEFT, call_trim),
    (c"ltrim", 2, Ends::LEFT, call_trim),
    (c"rtrim", 1, Ends::RIGHT, call_trim),
    (c"rtrim", 2, Ends::RIGHT, call_trim),
    (c"unhex", 1, Ends::NONE, call_unhex),
    (c"unhex", 2, Ends::NONE, call_unhex),
];

/// A pattern that is compared everywhere: it may be there so often that beginning a search costs
/// more.
const SHORT_BYTES: usize = 8;

/// Which ends of a text are trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends(usize);

impl Ends {
    const NONE: Ends = Ends(0);
    const LEFT: Ends = Ends(1);
    const RIGHT: Ends = Ends(2);
    const BOTH: Ends = Ends(3);

    fn has(self, other: Ends) -> bool {
        self.0 & other.0 != 0
    }
}

/// Puts them in the place of SQLite's own on a connection on which nothing runs. 3 µs.
pub(crate) fn register(connection: &Connection) -> Result<()> {
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_DETERMINISTIC | ffi::SQLITE_INNOCUOUS;
    for (name, argument_count, ends, function) in FUNCTIONS {
        // SAFETY: an open connection; the name is static, and the pointer is a number that nobody
        // follows.
        require_ok(unsafe {
            ffi::sqlite3_create_function_v2(
                connection.handle(),
                name.as_ptr(),
                argument_count,
                flags,
                std::ptr::without_provenance_mut::<c_void>(ends.0),
                Some(function),
                None,
                None,
                None,
            )
        })?;
    }
    Ok(())
}

/// `instr(TEXT, TEXT)`, `instr(BLOB, BLOB)`: where the second begins in the first, from 1; in
/// characters, or bytes of blobs.
unsafe extern "C" fn call_instr(
    context: *mut ffi::sqlite3_context,
    _count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite passes two values, which live as long as the call.
    let (haystack, needle) = unsafe { (*values, *values.add(1)) };
    // SAFETY: as above; the copies are freed after what is borrowed of them.
    unsafe {
        let types = [haystack, needle].map(|value| ffi::sqlite3_value_type(value));
        if types.contains(&ffi::SQLITE_NULL) {
            return;
        }
        let are_blobs = types.map(|kind| kind == ffi::SQLITE_BLOB);
        let found = match are_blobs {
            _ if ffi::sqlite3_value_bytes(needle) == 0 => Some(1),
            [true, true] => find_bytes(bytes(haystack), bytes(needle)),
            [false, false] => match (text(haystack), text(needle)) {
                (Some(haystack), Some(needle)) => find_text(haystack, needle),
                _ => return ffi::sqlite3_result_error_nomem(context),
            },
            // A blob that is read as text is text from then on, for everybody who has it.
            _ => {
                let copies = [haystack, needle].map(|value| Owned(ffi::sqlite3_value_dup(value)));
                match (text(copies[0].0), text(copies[1].0)) {
                    (Some(haystack), Some(needle)) => find_text(haystack, needle),
                    _ => return ffi::sqlite3_result_error_nomem(context),
                }
            }
        };
        ffi::sqlite3_result_int64(context, found.unwrap_or(0));
    }
}

/// `replace(TEXT, PATTERN, BY)`: the text with every PATTERN, from the left, replaced.
unsafe extern "C" fn call_replace(
    context: *mut ffi::sqlite3_context,
    _count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite passes three values, which live as long as the call.
    unsafe {
        let (Some(whole), Some(pattern)) = (text(*values), text(*values.add(1))) else {
            return;
        };
        if pattern.first().is_none_or(|first| *first == 0) {
            return give_text(context, whole);
        }
        let Some(by) = text(*values.add(2)) else {
            return;
        };
        match replace(whole, pattern, by, length_max(context)) {
            Some(replaced) => give_text(context, &replaced),
            None => ffi::sqlite3_result_error_toobig(context),
        }
    }
}

/// `trim(TEXT)`, `trim(TEXT, SET)`: the text without the characters of SET at its ends; without a
/// set, without spaces.
unsafe extern "C" fn call_trim(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite passes one or two values, which live as long as the call; the user data is a
    // number (`register`).
    unsafe {
        let Some(whole) = text(*values) else {
            return;
        };
        let set = match count {
            1 => Some(&b" "[..]),
            _ => text(*values.add(1)),
        };
        let Some(set) = set else {
            return;
        };
        let Some(set) = Set::new(set, length_max(context)) else {
            return ffi::sqlite3_result_error_toobig(context);
        };
        let ends = Ends(ffi::sqlite3_user_data(context).addr());
        give_text(context, set.trim(whole, ends));
    }
}

/// `unhex(TEXT)`, `unhex(TEXT, SET)`: the bytes of pairs of hexadecimal digits, between which
/// characters of SET may stand; NULL for any other text.
unsafe extern "C" fn call_unhex(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite passes one or two values, which live as long as the call, and copies the
    // result.
    unsafe {
        let whole = text(*values);
        let between = match count {
            1 => Some(&b""[..]),
            _ => text(*values.add(1)),
        };
        let (Some(whole), Some(between)) = (whole, between) else {
            return;
        };
        let Some(found) = unhex(whole, between) else {
            return;
        };
        let (start, length) = (found.as_ptr().cast(), found.len() as u64);
        ffi::sqlite3_result_blob64(context, start, length, ffi::SQLITE_TRANSIENT());
    }
}

/// A value of its own, for as long as this lives.
struct Owned(*mut ffi::sqlite3_value);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by `sqlite3_value_dup`, or null, and freed once.
        unsafe { ffi::sqlite3_value_free(self.0) }
    }
}

/// A value as text; `None`: it is NULL, or there is no memory for it.
///
/// # Safety
/// A value of the running call, or a copy, or null; what is returned is used before it is freed, or
/// asked for in another form.
unsafe fn text<'v>(value: *mut ffi::sqlite3_value) -> Option<&'v [u8]> {
    // SAFETY: as the caller promises; SQLite says how long it is in the form that it gave.
    unsafe {
        let start = ffi::sqlite3_value_text(value);
        let length = usize::try_from(ffi::sqlite3_value_bytes(value)).ok()?;
        (!start.is_null()).then(|| std::slice::from_raw_parts(start, length))
    }
}

/// The bytes of a blob; an empty one has no address.
///
/// # Safety
/// As for [`text`].
unsafe fn bytes<'v>(value: *mut ffi::sqlite3_value) -> &'v [u8] {
    // SAFETY: as the caller promises; SQLite says how long it is in the form that it gave.
    unsafe {
        let start = ffi::sqlite3_value_blob(value);
        match usize::try_from(ffi::sqlite3_value_bytes(value)) {
            Ok(length) if !start.is_null() => std::slice::from_raw_parts(start.cast(), length),
            _ => &[],
        }
    }
}

/// The longest value of the connection that calls, bytes.
///
/// # Safety
/// The context of the running call.
unsafe fn length_max(context: *mut ffi::sqlite3_context) -> usize {
    // SAFETY: as the caller promises; -1 changes nothing.
    let length = unsafe {
        let connection = ffi::sqlite3_context_db_handle(context);
        ffi::sqlite3_limit(connection, ffi::SQLITE_LIMIT_LENGTH, -1)
    };
    usize::try_from(length).unwrap_or(0)
}

/// # Safety
/// The context of the running call.
unsafe fn give_text(context: *mut ffi::sqlite3_context, text: &[u8]) {
    // SAFETY: as the caller promises; SQLite copies the text.
    unsafe {
        ffi::sqlite3_result_text64(
            context,
            text.as_ptr().cast(),
            text.len() as u64,
            ffi::SQLITE_TRANSIENT(),
            ffi::SQLITE_UTF8 as u8,
        );
    }
}

/// A byte that does not begin a character.
fn continues(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

fn find_bytes(haystack: &[u8], needle: &[u8]) -> Option<i64> {
    Some(memmem::find(haystack, needle)? as i64 + 1)
}

/// Looks where characters begin only, and at the very beginning.
fn find_text(haystack: &[u8], needle: &[u8]) -> Option<i64> {
    let start = match needle.first() {
        Some(first) if continues(*first) => haystack.starts_with(needle).then_some(0),
        _ => memmem::find(haystack, needle),
    }?;
    let passed = (haystack.get(1..=start).unwrap_or_default().iter()).filter(|b| !continues(**b));
    Some(passed.count() as i64 + 1)
}

/// `None`: it would be longer than `length_max`.
fn replace(whole: &[u8], pattern: &[u8], by: &[u8], length_max: usize) -> Option<Vec<u8>> {
    let finder = memmem::Finder::new(pattern);
    let find = |from: usize| {
        let rest = &whole[from..];
        let fits = |part: &[u8]| part[0] == pattern[0] && part == pattern;
        let found = match pattern.len() {
            ..=SHORT_BYTES => rest.windows(pattern.len()).position(fits),
            _ => finder.find(rest),
        };
        found.map(|at| (from + at, from + at + pattern.len()))
    };
    // SQLite wants memory for an end too.
    let (mut length, mut from) = (whole.len(), 0);
    if length >= length_max {
        return None;
    }
    while let Some((_, end)) = find(from) {
        length = length - pattern.len() + by.len();
        if length > length_max {
            return None;
        }
        from = end;
    }
    let mut replaced = Vec::with_capacity(length);
    let mut from = 0;
    while let Some((start, end)) = find(from) {
        replaced.extend_from_slice(&whole[from..start]);
        replaced.extend_from_slice(by);
        from = end;
    }
    replaced.extend_from_slice(&whole[from..]);
    Some(replaced)
}

/// The characters that are trimmed, each by where it is first in their text.
struct Set<'s> {
    text: &'s [u8],
    /// Those of one byte, by the byte.
    short: [Option<u32>; 256],
    /// The others, where they begin and end: by their bytes, and each once.
    long: Vec<(u32, u32)>,
}

impl<'s> Set<'s> {
    /// The characters of `text`, up to a NUL. `None`: SQLite's own would need more than
    /// `length_max` bytes for them.
    fn new(text: &'s [u8], length_max: usize) -> Option<Set<'s>> {
        let end = memchr::memchr(0, text).unwrap_or(text.len());
        let text = &text[..end];
        let (mut short, mut long) = ([None; 256], Vec::new());
        let (mut start, mut count) = (0, 0);
        while start < end {
            let length = character(&text[start..]).len();
            let at = u32::try_from(start).ok()?;
            match length {
                1 => {
                    short[usize::from(text[start])].get_or_insert(at);
                }
                _ => long.push((at, u32::try_from(start + length).ok()?)),
            }
            count += 1;
            start += length;
        }
        if count * (size_of::<*const u8>() + size_of::<c_int>()) > length_max {
            return None;
        }
        let mut set = Set { text, short, long };
        let mut long = std::mem::take(&mut set.long);
        long.sort_unstable_by(|a, b| (set.bytes(a), a.0).cmp(&(set.bytes(b), b.0)));
        long.dedup_by(|a, b| set.bytes(a) == set.bytes(b));
        set.long = long;
        Some(set)
    }

    fn bytes(&self, range: &(u32, u32)) -> &'s [u8] {
        &self.text[range.0 as usize..range.1 as usize]
    }

    fn trim<'t>(&self, text: &'t [u8], ends: Ends) -> &'t [u8] {
        let text = match ends.has(Ends::LEFT) {
            true => self.trim_start(text),
            false => text,
        };
        match ends.has(Ends::RIGHT) {
            true => self.trim_end(text),
            false => text,
        }
    }

    /// For each beginning of `character`, from one byte up, where it is in the set, if it is; ends
    /// where nothing in the set goes on so. O(its length · log of the set).
    fn beginnings(&self, character: &[u8]) -> impl Iterator<Item = Option<u32>> {
        let mut like = &self.long[..];
        character
            .iter()
            .enumerate()
            .map_while(move |(index, byte)| {
                let at = |range: &(u32, u32)| self.bytes(range).get(index).copied();
                let from = like.partition_point(|range| at(range) < Some(*byte));
                like = &like[from..];
                like = &like[..like.partition_point(|range| at(range) == Some(*byte))];
                let long = (like.first())
                    .filter(|(start, end)| (end - start) as usize == index + 1)
                    .map(|(start, _)| *start);
                let short = self.short[usize::from(*byte)].filter(|_| index == 0);
                (short.is_some() || !like.is_empty()).then_some(short.or(long))
            })
    }

    /// Every byte is looked at twice at most: in the character that it belongs to, and alone.
    fn trim_start<'t>(&self, mut text: &'t [u8]) -> &'t [u8] {
        while let Some(first) = text.first() {
            let length = match first {
                ..0xC0 => self.short[usize::from(*first)].map(|_| 1),
                _ => {
                    let fitting = self.beginnings(character(text)).zip(1..);
                    let fitting = fitting.filter_map(|(at, length)| Some((at?, length)));
                    fitting.min().map(|(_, length)| length)
                }
            };
            match length {
                Some(length) => text = &text[length..],
                None => break,
            }
        }
        text
    }

    /// At the end fits the whole last character, or its last byte alone.
    fn trim_end<'t>(&self, mut text: &'t [u8]) -> &'t [u8] {
        while let Some(last) = text.iter().rposition(|byte| !continues(*byte)) {
            // Bytes that continue nothing stand alone.
            let whole = &text[last..];
            let beginnings: Vec<_> = match whole.len() > 1 && character(whole).len() == whole.len()
            {
                true => self.beginnings(whole).collect(),
                false => Vec::new(),
            };
            let mut length = whole.len();
            while length > 0 {
                let whole_at = beginnings.get(length - 1).copied().flatten();
                let alone_at = self.short[usize::from(whole[length - 1])];
                length = match (whole_at, alone_at) {
                    (Some(at), alone) if alone.is_none_or(|alone| at <= alone) => 0,
                    (_, Some(_)) => length - 1,
                    _ => return &text[..last + length],
                };
            }
            text = &text[..last];
        }
        let is_kept = |byte: &u8| self.short[usize::from(*byte)].is_none();
        let kept = text.iter().rposition(is_kept);
        &text[..kept.map_or(0, |last| last + 1)]
    }
}

/// The character that a text which is not empty begins with.
fn character(text: &[u8]) -> &[u8] {
    let length = match text[0] {
        0xC0.. => {
            text[1..]
                .iter()
                .take_while(|byte| continues(**byte))
                .count()
                + 1
        }
        _ => 1,
    };
    &text[..length]
}

/// `None`: there is something else between the pairs, or a digit is alone.
fn unhex(whole: &[u8], between: &[u8]) -> Option<Vec<u8>> {
    let mut allowed = HashSet::new();
    let mut rest = between;
    while !rest.is_empty() {
        allowed.insert(code_point(&mut rest));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut rest = &whole[..memchr::memchr(0, whole).unwrap_or(whole.len())];
    let mut found = Vec::with_capacity(rest.len() / 2);
    while let Some(first) = rest.first() {
        match digit(*first) {
            Some(high) => {
                let low = digit(*rest.get(1)?)?;
                found.push((high << 4 | low) as u8);
                rest = &rest[2..];
            }
            None if allowed.contains(&code_point(&mut rest)) => {}
            None => return None,
        }
    }
    Some(found)
}

/// Takes a character from a text that is not empty, as SQLite reads it: what is no UTF-8 has a
/// number too.
fn code_point(text: &mut &[u8]) -> u32 {
    let read = character(text);
    *text = &text[read.len()..];
    let first = read[0];
    let begin = match first {
        ..0xC0 => return first.into(),
        0xC0..0xE0 => first & 0x1F,
        0xE0..0xF0 => first & 0x0F,
        0xF0..0xF8 => first & 0x07,
        0xF8..0xFC => first & 0x03,
        0xFC..0xFE => first & 0x01,
        0xFE.. => 0,
    };
    let code = (read[1..].iter()).fold(u32::from(begin), |code, byte| {
        (code << 6).wrapping_add(u32::from(byte & 0x3F))
    });
    match code {
        ..0x80 | 0xD800..0xE000 => 0xFFFD,
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::confine::scratch;
    use proptest::prelude::*;
    use rusqlite::types::Value;
    use std::time::{Duration, Instant};

    /// Each function with as many parameters as it has arguments.
    const CALLS: [&str; 10] = [
        "instr(?1, ?2)",
        "replace(?1, ?2, ?3)",
        "trim(?1)",
        "trim(?1, ?2)",
        "ltrim(?1)",
        "ltrim(?1, ?2)",
        "rtrim(?1)",
        "rtrim(?1, ?2)",
        "unhex(?1)",
        "unhex(?1, ?2)",
    ];

    /// What a call gives, its type and its bytes, or its error.
    fn ask(
        connection: &Connection,
        call: &str,
        values: &[Value],
    ) -> std::result::Result<(String, Vec<u8>), String> {
        // A text need not be UTF-8, and a number tells its bytes as text.
        let sql = format!("SELECT typeof(r), CAST(r AS BLOB) FROM (SELECT {call} AS r)");
        let mut statement = connection.prepare_cached(&sql).unwrap();
        let count = statement.parameter_count();
        let row = statement.query_row(rusqlite::params_from_iter(&values[..count]), |row| {
            let bytes: Option<Vec<u8>> = row.get(1)?;
            Ok((row.get(0)?, bytes.unwrap_or_default()))
        });
        row.map_err(|error| error.to_string())
    }

    /// Bytes of few kinds, so that many fit: letters, digits, what begins characters and what
    /// continues them, and NUL.
    fn bytes_of_few_kinds() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop::sample::select(
            &b"aab A1f\0\x80\xa9\xbf\xc3\xc3\xe2\x82\xed\xa0\xef\xbf\xf8\xfc\xff"[..],
        );
        prop_oneof![
            prop::collection::vec(byte, 0..12),
            "[a\u{e9}\u{20ac}\u{10348} ]{0,8}".prop_map(String::into_bytes),
            "[0-9a-f ]{0,10}".prop_map(String::into_bytes),
        ]
    }

    /// What is bound, and how SQLite makes its value of it: a text need not be UTF-8.
    fn value() -> impl Strategy<Value = (&'static str, Value)> {
        prop_oneof![
            6 => bytes_of_few_kinds().prop_map(|bytes| ("CAST(? AS TEXT)", Value::Blob(bytes))),
            2 => bytes_of_few_kinds().prop_map(|bytes| ("?", Value::Blob(bytes))),
            1 => (-200_i64..200).prop_map(|number| ("?", Value::Integer(number))),
            1 => any::<i64>().prop_map(|number| ("?", Value::Integer(number))),
            1 => any::<f64>().prop_map(|number| ("?", Value::Real(number))),
            1 => (0_i64..4).prop_map(|count| ("zeroblob(?)", Value::Integer(count))),
            1 => Just(("?", Value::Null)),
        ]
    }

    /// Asks both the same.
    fn compare(own: &Connection, sqlite: &Connection, arguments: &[(&str, Value)]) {
        let values: Vec<Value> = arguments.iter().map(|(_, value)| value.clone()).collect();
        for call in CALLS {
            let mut call = call.to_owned();
            for (index, (form, _)) in arguments.iter().enumerate() {
                let parameter = format!("?{}", index + 1);
                call = call.replace(&parameter, &form.replace('?', &parameter));
            }
            let (ours, theirs) = (ask(own, &call, &values), ask(sqlite, &call, &values));
            assert_eq!(ours, theirs, "SAFE-9: {call} of {values:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn each_gives_what_sqlites_own_gives(
            mut arguments in prop::collection::vec(value(), 3),
            is_part in any::<bool>(),
            from in 0_usize..6,
        ) {
            thread_local! {
                static BOTH: [Connection; 2] =
                    [scratch().unwrap(), Connection::open_in_memory().unwrap()];
            }
            // What is looked for is a part of the text more often than chance has it.
            if let (true, Value::Blob(whole)) = (is_part, arguments[0].1.clone()) {
                let rest = whole.get(from..).unwrap_or_default();
                arguments[1].1 = Value::Blob(rest[..rest.len().min(3)].to_vec());
                if arguments[1].0 == "zeroblob(?)" {
                    arguments[1].0 = "?";
                }
            }
            BOTH.with(|[own, sqlite]| compare(own, sqlite, &arguments));
        }
    }

    /// The same of all short texts of the bytes that matter to sets: what begins, what continues,
    /// what stands alone.
    #[test]
    fn all_short_texts_are_trimmed_as_sqlite_does() {
        let (own, sqlite) = (scratch().unwrap(), Connection::open_in_memory().unwrap());
        let all = |length: u32| {
            (0..4_usize.pow(length)).map(move |number| {
                let byte = |place| b"a\xc3\xa9\xaa"[number / 4_usize.pow(place) % 4];
                (0..length).map(byte).collect::<Vec<u8>>()
            })
        };
        let sql = "SELECT hex(ltrim(t, s)) || ',' || hex(rtrim(t, s)) || ',' || hex(trim(t, s)) \
                   || instr(t, s) FROM (SELECT CAST(?1 AS TEXT) AS t, CAST(?2 AS TEXT) AS s)";
        for text in (0..5).flat_map(all) {
            for set in (0..5).flat_map(all) {
                let ask = |connection: &Connection| -> String {
                    let mut statement = connection.prepare_cached(sql).unwrap();
                    let told = statement.query_row([&text, &set], |row| row.get(0));
                    told.unwrap()
                };
                assert_eq!(ask(&own), ask(&sqlite), "SAFE-9: {text:x?} by {set:x?}");
            }
        }
    }

    /// What takes SQLite's own from a minute to days.
    #[test]
    fn what_grew_with_the_square_ends() {
        let connection = scratch().unwrap();
        let given = "WITH given AS MATERIALIZED \
                     (SELECT replace(hex(zeroblob(1000000)), '0', 'a') AS a)";
        let began = Instant::now();
        for call in [
            "instr(a, substr(a, 1, length(a) / 2) || 'b')",
            "instr(a || 'b', substr(a, 1, length(a) / 2) || 'b')",
            "length(replace(a, substr(a, 1, length(a) / 2) || 'b', 'c'))",
            "length(replace(a, 'a', 'bc'))",
            "length(trim(a, replace(a, 'a', 'b') || 'a'))",
            "length(ltrim(replace(a, 'a', char(232)), replace(a, 'a', char(233)) || char(232)))",
            "length(rtrim(replace(a, 'a', char(232)), replace(a, 'a', char(233)) || char(232)))",
            "length(rtrim(CAST(x'c3' || CAST(replace(a, 'a', x'80') AS BLOB) AS TEXT), x'80'))",
            "length(unhex(replace(a, 'a', 'z'), replace(a, 'a', 'y') || 'z'))",
        ] {
            let sql = format!("{given} SELECT {call} FROM given");
            let since = Instant::now();
            let told: Option<i64> = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
            println!("{call}: {told:?} in {:?}", since.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(60), "SAFE-9");
    }
}
