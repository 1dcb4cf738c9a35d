//! docs/format.md says what the code does: its tables are generated here and compared.
//!
//! The layouts of a map page and of a segment are written down once more below, and held against
//! encoded bytes. `LARDER_WRITE_DOC=1 cargo test -p larder-format --test format_doc` writes the
//! tables into the document.

use std::sync::{Mutex, PoisonError};

use larder_format::checksum::crc32c;
use larder_format::superblock::{
    BLOCK_COUNT_MAX, COPY_COUNT, DATA_OFFSET_BYTES, FIELDS, Member, SUPERBLOCK_BYTES, Superblock,
};
use larder_format::{
    Extent, FileKind, MapPage, MapReference, MapRun, PieceEntry, PiecePage, SegmentIndex, limits,
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
/// The schema is the catalog's; read as text, since this crate must not use that one.
const SCHEMA: &[&str] = &[
    include_str!("../../catalog-sqlite/src/schema/system.sql"),
    include_str!("../../catalog-sqlite/src/schema/store.sql"),
    include_str!("../../catalog-sqlite/src/schema/store_code.sql"),
    include_str!("../../catalog-sqlite/src/schema/guard.sql"),
];

/// (name, offset in bytes, size in bytes, meaning).
type Field = (&'static str, usize, usize, &'static str);

const PAGE_HEAD: [Field; 3] = [
    ("version", 0, 1, "1"),
    ("zero", 1, 1, "0"),
    ("run_count", 2, 2, "number of runs, u16; 1–2048"),
];
const PAGE_RUN: [Field; 5] = [
    (
        "logical_block",
        0,
        2,
        "first logical block, counted from the start of the page, u16",
    ),
    ("zero", 2, 2, "not read"),
    ("block_count", 4, 4, "number of blocks, u32; ≥ 1"),
    ("segment", 8, 4, "the segment that holds them, u32"),
    (
        "start_block",
        12,
        8,
        "first block there, counted from the first data block, u64",
    ),
];
const REFERENCE: [Field; 4] = [
    ("version", 0, 1, "2"),
    ("zero", 1, 1, "0"),
    (
        "number",
        2,
        8,
        "`number` of a row of `larder_map_page`, u64",
    ),
    ("checksum", 10, 4, "CRC-32C of everything before it"),
];
const HEAD_BYTES: usize = 4;
const RUN_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 4;
const PIECE_HEAD: [Field; 7] = [
    ("version", 0, 1, "1"),
    (
        "level",
        1,
        1,
        "0: the entries are pieces; n: they are pages of level n − 1",
    ),
    ("entry_count", 2, 2, "number of entries, u16; 0–120"),
    ("zero", 4, 4, "0"),
    (
        "changed_seq",
        8,
        8,
        "root: no two committed states of the list have the same number, u64; else 0",
    ),
    (
        "next_page",
        16,
        8,
        "root: number of the next new page, u64; else 0",
    ),
    (
        "base_blocks",
        24,
        8,
        "root: base blocks from here on were never used, u64; else 0",
    ),
];
const PIECE_ENTRY: [Field; 2] = [
    (
        "target",
        0,
        8,
        "level 0: first base block of the piece; else number of the page, u64",
    ),
    (
        "len_bytes",
        8,
        8,
        "bytes of the object that it holds, u64; ≥ 1",
    ),
];
const PIECE_HEAD_BYTES: usize = 32;
const PIECE_ENTRY_BYTES: usize = 16;

fn document() -> String {
    std::fs::read_to_string(PATH).expect("docs/format.md is there")
}

/// Tests run side by side, and each may write.
static WRITING: Mutex<()> = Mutex::new(());

/// Compares the text between the markers of `section` with `expected`, or writes it there.
fn assert_section(section: &str, expected: &str) {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let text = document();
    let (begin, end) = (
        format!("<!-- {section}:begin -->"),
        format!("<!-- {section}:end -->"),
    );
    let parts = text
        .split_once(&begin)
        .and_then(|(head, rest)| Some((head, rest.split_once(&end)?)));
    let Some((head, (found, tail))) = parts else {
        panic!("docs/format.md has no section '{section}' between its markers");
    };
    if std::env::var_os("LARDER_WRITE_DOC").is_some() {
        std::fs::write(PATH, format!("{head}{begin}\n{expected}\n{end}{tail}"))
            .expect("docs/format.md can be written");
        return;
    }
    assert_eq!(
        found.trim(),
        expected,
        "docs/format.md, '{section}'; LARDER_WRITE_DOC=1 writes it"
    );
}

fn field_table(fields: &[Field]) -> String {
    let mut lines = vec![
        "| offset | bytes | field | meaning |".to_owned(),
        "|---:|---:|---|---|".to_owned(),
    ];
    for (name, at, size, meaning) in fields {
        lines.push(format!("| {at} | {size} | `{name}` | {meaning} |"));
    }
    lines.join("\n")
}

/// Boxes of `width` characters per byte, `per_line` bytes per line. A field that is cut by the end
/// of a line goes on in the next one, as `…`.
fn byte_diagram(fields: &[Field], drawn_bytes: usize, per_line: usize, width: usize) -> String {
    let rule = |bytes: usize| {
        let one = format!("{}+", "-".repeat(width - 1));
        format!("       +{}", one.repeat(bytes))
    };
    let mut lines = vec![rule(per_line.min(drawn_bytes))];
    for line_at in (0..drawn_bytes).step_by(per_line) {
        let line_end = (line_at + per_line).min(drawn_bytes);
        let mut line = format!("{line_at:>6} |");
        for &(name, at, size, _) in fields {
            let (from, to) = (at.max(line_at), (at + size).min(line_end));
            if from < to {
                let text = if from == at { name } else { "…" };
                let room = (to - from) * width - 1;
                assert!(text.chars().count() <= room, "{name} does not fit its box");
                line.push_str(&format!("{text:^room$}|"));
            }
        }
        lines.extend([line, rule(line_end - line_at)]);
    }
    lines.join("\n")
}

/// `SUPER-1`: the table covers the copy, and the document is the table.
#[test]
fn the_superblock_is_drawn_from_its_table() {
    let diagram = byte_diagram(FIELDS, 160, 16, 4);
    let rest = format!("       …  zero to byte {SUPERBLOCK_BYTES}");
    let text = format!("```text\n{diagram}\n{rest}\n```\n\n{}", field_table(FIELDS));
    assert_section("superblock", &text);
}

#[test]
fn the_layout_of_a_segment_is_that_of_the_code() {
    let one_block = Superblock {
        generation: 0,
        database_id: [0; 16],
        segment: SegmentIndex(0),
        block_count: 1,
        created_ns: 0,
        member: Member::ALONE,
    };
    assert_eq!(
        one_block.segment_bytes(),
        DATA_OFFSET_BYTES + limits::BLOCK_BYTES
    );
    let mut lines = vec![
        "| offset, bytes | bytes | what |".to_owned(),
        "|---|---|---|".to_owned(),
    ];
    for copy in 0..COPY_COUNT {
        let at = Superblock {
            generation: copy as u64,
            ..one_block
        }
        .offset_bytes();
        lines.push(format!(
            "| {at} | {SUPERBLOCK_BYTES} | superblock, copy {copy} |"
        ));
    }
    let copies_end = COPY_COUNT * SUPERBLOCK_BYTES;
    lines.push(format!(
        "| {copies_end} | {} | zero |",
        DATA_OFFSET_BYTES as usize - copies_end
    ));
    lines.push(format!(
        "| {DATA_OFFSET_BYTES} + {} × b | {0} | data block b, 0 ≤ b < `block_count` ≤ \
         {BLOCK_COUNT_MAX} |",
        limits::BLOCK_BYTES
    ));
    assert_section("segment", &lines.join("\n"));
}

/// The little-endian number in a field of `record`.
fn number(record: &[u8], fields: &[Field], name: &str) -> u64 {
    let &(_, at, size, _) = fields
        .iter()
        .find(|field| field.0 == name)
        .expect("a field");
    record[at..at + size]
        .iter()
        .rev()
        .fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
}

#[test]
fn the_layout_of_a_map_reference_is_that_of_the_code() {
    let bytes = MapReference(0x0102_0304_0506_0708).encode();
    let field = |name| number(&bytes, &REFERENCE, name);
    assert_eq!((field("version"), field("zero")), (2, 0));
    assert_eq!(field("number"), 0x0102_0304_0506_0708);
    assert_eq!(field("checksum"), u64::from(crc32c(&bytes[..10])));
    let covers: usize = REFERENCE.iter().map(|field| field.2).sum();
    assert_eq!(covers, limits::MAP_REFERENCE_BYTES);
    assert_section("map-reference", &field_table(&REFERENCE));
}

/// `FORMAT-1`: the encoded bytes are the documented little-endian ones.
#[test]
fn the_layout_of_a_map_page_is_that_of_the_code() {
    let runs = [
        MapRun {
            logical_block: 0x0102,
            extent: Extent::new(SegmentIndex(0x0304_0506), 0x0708_090a_0b0c, 2),
            checksums: vec![0x1112_1314, 0x2122_2324],
        },
        MapRun {
            logical_block: 0x0700,
            extent: Extent::new(SegmentIndex(7), 9, 1),
            checksums: vec![0x3132_3334],
        },
    ];
    let mut page = MapPage::default();
    for run in &runs {
        assert!(page.insert(run.clone()).is_empty());
    }
    let bytes = page.encode();
    assert_eq!(
        (number(&bytes, &PAGE_HEAD, "version"), bytes[1]),
        (1, 0),
        "the head"
    );
    assert_eq!(number(&bytes, &PAGE_HEAD, "run_count"), runs.len() as u64);
    for (index, run) in runs.iter().enumerate() {
        let record = &bytes[HEAD_BYTES + index * RUN_BYTES..][..RUN_BYTES];
        let field = |name| number(record, &PAGE_RUN, name);
        assert_eq!(field("logical_block"), run.logical_block);
        assert_eq!(field("zero"), 0);
        assert_eq!(field("block_count"), run.extent.block_count);
        assert_eq!(field("segment"), u64::from(run.extent.segment.0));
        assert_eq!(field("start_block"), run.extent.start_block);
    }
    let sums_at = HEAD_BYTES + runs.len() * RUN_BYTES;
    let sums: Vec<u8> = runs
        .iter()
        .flat_map(|run| &run.checksums)
        .flat_map(|sum| sum.to_le_bytes())
        .collect();
    assert_eq!(&bytes[sums_at..sums_at + sums.len()], sums);
    let body = &bytes[..sums_at + sums.len()];
    assert_eq!(&bytes[body.len()..], crc32c(body).to_le_bytes());
    assert_eq!(MapPage::decode(&bytes), Ok(page), "FORMAT-3");

    let covers = |fields: &[Field]| fields.iter().map(|field| field.2).sum::<usize>();
    assert_eq!(
        (covers(&PAGE_HEAD), covers(&PAGE_RUN)),
        (HEAD_BYTES, RUN_BYTES)
    );
    let text = format!(
        "The head, {HEAD_BYTES} bytes:\n\n```text\n{}\n```\n\n{}\n\n\
         Then `run_count` runs of {RUN_BYTES} bytes, sorted by \
         `logical_block`:\n\n```text\n{}\n```\n\n{}\n\n\
         Then one CRC-32C of {CHECKSUM_BYTES} bytes for each block of each run, in logical order.\n\
         Last, {CHECKSUM_BYTES} bytes: the CRC-32C of everything before it.\n\n\
         A page covers {} logical blocks ({} MiB). It has at least {} bytes, and at most {}.",
        byte_diagram(&PAGE_HEAD, HEAD_BYTES, 4, 10),
        field_table(&PAGE_HEAD),
        byte_diagram(&PAGE_RUN, RUN_BYTES, 8, 8),
        field_table(&PAGE_RUN),
        limits::MAP_PAGE_BLOCKS,
        (limits::MAP_PAGE_BLOCKS * limits::BLOCK_BYTES) >> 20,
        encoded_bytes(1, 1),
        encoded_bytes(limits::MAP_PAGE_BLOCKS, 1),
    );
    assert_section("map-page", &text);
}

/// `FORMAT-1` for pages of pieces.
#[test]
fn the_layout_of_a_piece_page_is_that_of_the_code() {
    let entry = |target, len_bytes| PieceEntry { target, len_bytes };
    let page = PiecePage {
        level: 3,
        changed_seq: 0x0102_0304_0506_0708,
        next_page: 0x1112_1314,
        base_blocks: 0x2122_2324,
        entries: vec![entry(0x0a0b_0c0d_0e0f, 0x31), entry(7, 0x0041_4243)],
    };
    let bytes = page.encode();
    let head = |name| number(&bytes, &PIECE_HEAD, name);
    assert_eq!((head("version"), head("level"), head("zero")), (1, 3, 0));
    assert_eq!(head("entry_count"), page.entries.len() as u64);
    assert_eq!(head("changed_seq"), page.changed_seq);
    assert_eq!(head("next_page"), page.next_page);
    assert_eq!(head("base_blocks"), page.base_blocks);
    for (index, entry) in page.entries.iter().enumerate() {
        let record = &bytes[PIECE_HEAD_BYTES + index * PIECE_ENTRY_BYTES..][..PIECE_ENTRY_BYTES];
        let field = |name| number(record, &PIECE_ENTRY, name);
        assert_eq!(
            (field("target"), field("len_bytes")),
            (entry.target, entry.len_bytes)
        );
    }
    let body = &bytes[..bytes.len() - CHECKSUM_BYTES];
    assert_eq!(&bytes[body.len()..], crc32c(body).to_le_bytes());
    assert_eq!(PiecePage::decode(&bytes), Ok(page), "FORMAT-3");
    let covers = |fields: &[Field]| fields.iter().map(|field| field.2).sum::<usize>();
    assert_eq!(
        (covers(&PIECE_HEAD), covers(&PIECE_ENTRY)),
        (PIECE_HEAD_BYTES, PIECE_ENTRY_BYTES)
    );
    let most = limits::PIECE_PAGE_ENTRIES_MAX;
    let text = format!(
        "The head, {PIECE_HEAD_BYTES} bytes:\n\n{}\n\n\
         Then `entry_count` entries of {PIECE_ENTRY_BYTES} bytes, in the order of the \
         object:\n\n{}\n\n\
         Last, {CHECKSUM_BYTES} bytes: the CRC-32C of everything before it. A page has at most {} \
         bytes.",
        field_table(&PIECE_HEAD),
        field_table(&PIECE_ENTRY),
        PIECE_HEAD_BYTES + most * PIECE_ENTRY_BYTES + CHECKSUM_BYTES,
    );
    assert_section("piece-page", &text);
}

/// Length of a page of `run_count` runs of `blocks` blocks, none next to another on the segment.
fn encoded_bytes(run_count: u64, blocks: u64) -> usize {
    let mut page = MapPage::default();
    for run in 0..run_count {
        page.insert(MapRun {
            logical_block: run * blocks,
            extent: Extent::new(SegmentIndex(0), run * (blocks + 1), blocks),
            checksums: vec![0; blocks as usize],
        });
    }
    page.encode().len()
}

#[test]
fn the_limits_are_those_of_the_code() {
    let limits: [(&str, u64, &str); 26] = [
        (
            "BLOCK_BYTES",
            limits::BLOCK_BYTES,
            "bytes in a block: the unit of allocation and of checksums",
        ),
        (
            "AG_BLOCKS",
            limits::AG_BLOCKS,
            "blocks in an allocation group; no extent crosses from one into the next",
        ),
        (
            "INLINE_BYTES_MAX",
            limits::INLINE_BYTES_MAX,
            "bytes of content that may live inline in the catalog",
        ),
        (
            "GATHER_BYTES_MIN",
            limits::GATHER_BYTES_MIN,
            "bytes: the smallest gather that a database may ask for",
        ),
        (
            "GATHER_BYTES_MAX",
            limits::GATHER_BYTES_MAX,
            "bytes: the largest gather that a database may ask for",
        ),
        (
            "MAP_PAGE_BLOCKS",
            limits::MAP_PAGE_BLOCKS,
            "logical blocks that one map page covers",
        ),
        (
            "PIECE_PAGE_ENTRIES_MAX",
            limits::PIECE_PAGE_ENTRIES_MAX as u64,
            "entries in one page of a list of pieces",
        ),
        (
            "BASE_BLOCKS_MAX",
            limits::BASE_BLOCKS_MAX,
            "blocks of the base of an object with pieces",
        ),
        (
            "NAME_BYTES_MAX",
            limits::NAME_BYTES_MAX as u64,
            "bytes in the name of a directory entry",
        ),
        (
            "PATH_BYTES_MAX",
            limits::PATH_BYTES_MAX as u64,
            "bytes in a path",
        ),
        (
            "SYMLINK_BYTES_MAX",
            limits::SYMLINK_BYTES_MAX as u64,
            "bytes in the target of a symbolic link",
        ),
        (
            "SYMLINK_FOLLOW_MAX",
            u64::from(limits::SYMLINK_FOLLOW_MAX),
            "symbolic links followed while one path is resolved",
        ),
        ("FILE_BYTES_MAX", limits::FILE_BYTES_MAX, "bytes in a file"),
        (
            "LINK_COUNT_MAX",
            u64::from(limits::LINK_COUNT_MAX),
            "hard links to one inode; subdirectories of one directory, and 2",
        ),
        (
            "XATTR_NAME_BYTES_MAX",
            limits::XATTR_NAME_BYTES_MAX as u64,
            "bytes in the name of an extended attribute",
        ),
        (
            "XATTR_LIST_BYTES_MAX",
            limits::XATTR_LIST_BYTES_MAX as u64,
            "bytes in the names of all extended attributes of an inode, each with a NUL",
        ),
        (
            "XATTR_VALUE_BYTES_MAX",
            limits::XATTR_VALUE_BYTES_MAX as u64,
            "bytes in the value of an extended attribute",
        ),
        (
            "STORE_NAME_BYTES_MAX",
            limits::STORE_NAME_BYTES_MAX as u64,
            "bytes in the name of a store",
        ),
        (
            "STORES_MAX",
            limits::STORES_MAX as u64,
            "stores that a database may get",
        ),
        (
            "STORES_OPEN_MAX",
            limits::STORES_OPEN_MAX as u64,
            "stores with which a database still opens",
        ),
        (
            "HELD_BACK_DIVISOR",
            limits::HELD_BACK_DIVISOR,
            "one block in so many is held back from ordinary writes",
        ),
        (
            "CAPACITY_BYTES_MIN",
            limits::CAPACITY_BYTES_MIN,
            "bytes: the smallest capacity of a database",
        ),
        (
            "FEED_CHANGES_MAX",
            limits::FEED_CHANGES_MAX,
            "newest changes that the feed keeps",
        ),
        (
            "FEED_AGE_MAX_NS",
            limits::FEED_AGE_MAX_NS as u64,
            "nanoseconds after which a change leaves the feed",
        ),
        (
            "FEED_ROW_CHANGES_MAX",
            limits::FEED_ROW_CHANGES_MAX as u64,
            "changes in one row of the feed",
        ),
        (
            "BLOCK_COUNT_MAX",
            BLOCK_COUNT_MAX,
            "data blocks that a superblock may claim",
        ),
    ];
    let mut lines = vec![
        "| limit | value | meaning |".to_owned(),
        "|---|---:|---|".to_owned(),
    ];
    lines.extend(
        limits
            .iter()
            .map(|(name, value, meaning)| format!("| `{name}` | {value} | {meaning} |")),
    );
    assert_section("limits", &lines.join("\n"));
}

#[test]
fn the_kinds_are_those_of_the_code() {
    let mut lines = vec![
        "| `kind` | bits of `st_mode` |".to_owned(),
        "|---|---|".to_owned(),
    ];
    lines.extend(
        FileKind::ALL
            .iter()
            .map(|kind| format!("| `{}` | 0{:06o} |", kind.as_str(), kind.mode_bits())),
    );
    assert_section("kinds", &lines.join("\n"));
}

/// The tables of the schema files with their columns, in order; `{name}` shows as `NAME`.
fn tables() -> Vec<(String, Vec<String>)> {
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in SCHEMA.iter().flat_map(|sql| sql.lines()) {
        if let Some(rest) = line.strip_prefix("CREATE TABLE ") {
            tables.push((shown(rest), Vec::new()));
            is_inside = true;
        } else if line.starts_with(')') {
            is_inside = false;
        } else if let Some(column) = line.strip_prefix("  ").filter(|_| is_inside)
            && column.starts_with(|first: char| first.is_ascii_lowercase())
        {
            let (_, columns) = tables.last_mut().expect("a table");
            columns.push(shown(column));
            // Columns that ALTER TABLE put behind others.
            let later = column.match_indices(", ").map(|(at, _)| &column[at + 2..]);
            let is_column = |text: &&str| text.contains(" INTEGER") && !text.starts_with('\'');
            columns.extend(later.filter(is_column).map(shown));
        }
    }
    tables
}

/// The first word, without quotes.
fn shown(text: &str) -> String {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.replace('"', "")
        .replace("{name}", "NAME")
        .replace("{table}", "TABLE")
}

#[test]
fn every_table_column_view_and_trigger_is_documented() {
    let text = document();
    let tables = tables();
    assert_eq!(tables.len(), 24 + 5 + 2, "tables in the schema files");
    for (table, columns) in &tables {
        assert!(!columns.is_empty(), "{table} has columns");
        let row = format!("| `{table}` | `{}` |", columns.join("`, `"));
        assert!(
            text.contains(&row),
            "docs/format.md lacks a row that begins\n{row}"
        );
    }
    let mut others = 0;
    for line in SCHEMA.iter().flat_map(|sql| sql.lines()) {
        let rest = ["CREATE VIEW ", "CREATE TRIGGER ", "CREATE INDEX "]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        if let Some(rest) = rest {
            others += 1;
            let name = shown(rest);
            assert!(
                text.contains(&format!("`{name}`")),
                "docs/format.md does not name `{name}`"
            );
        }
    }
    assert!(
        others > 10,
        "{others} views, triggers and indexes in the schema files"
    );
}
