//! `larder frag --map`: a picture of the segments, in rows of characters.

use crate::databases::with_database;
use crate::error::Result;
use crate::output::Output;
use crate::units::show_size;
use larder::{MapCell, SegmentMap, limits};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;

/// Rows that all segments take together, about.
const ROWS: u64 = 24;
/// Columns when stdout is no terminal.
const COLUMNS: u16 = 80;
/// What stands before a row: a segment and an address.
const MARGIN: u16 = 16;

/// The characters of a picture: free, three shades of partly used, full, waiting for reclaim.
struct Palette {
    shades: [char; 5],
    retired: char,
}

const BLOCKS: Palette = Palette {
    shades: ['·', '░', '▒', '▓', '█'],
    retired: '○',
};
const ASCII: Palette = Palette {
    shades: ['.', '-', '+', '*', '#'],
    retired: 'o',
};

/// Draws the database.
pub(crate) fn draw(path: &Path, out: &mut Output) -> Result<()> {
    let columns = row_cells(terminal_columns());
    let maps = with_database(path, "frag", |database| {
        let segment_bytes = database.maintenance().space()?.segment_bytes;
        let cell_blocks = cell_blocks(segment_bytes / limits::BLOCK_BYTES, columns);
        Ok(database.maintenance().space_map(cell_blocks)?)
    })?;
    if out.is_json() {
        maps.iter()
            .try_for_each(|map| out.item(&map_json(map).to_string()))?;
        return out.end_list();
    }
    let palette = if speaks_utf8() { &BLOCKS } else { &ASCII };
    for map in &maps {
        for line in lines(map, columns, palette) {
            out.line(&line)?;
        }
    }
    let cell_bytes = maps.first().map_or(0, |map| map.cell_bytes);
    out.line(&legend(palette, cell_bytes))
}

/// Cells in a row: a power of two, so that rows begin where allocation groups do.
fn row_cells(columns: u16) -> u64 {
    let room = u64::from(columns.saturating_sub(MARGIN).max(8));
    1 << room.ilog2()
}

/// Blocks in a cell, a power of two: about [`ROWS`] rows for `blocks`.
fn cell_blocks(blocks: u64, row_cells: u64) -> u64 {
    blocks.div_ceil(ROWS * row_cells).max(1).next_power_of_two()
}

fn lines(map: &SegmentMap, row_cells: u64, palette: &Palette) -> Vec<String> {
    let rows = map.cells.chunks(row_cells as usize).enumerate();
    rows.map(|(row, cells)| {
        let address = row as u64 * row_cells * map.cell_bytes;
        let drawn: String = cells.iter().map(|cell| character(cell, palette)).collect();
        format!("{:>3} {:>10}  {drawn}", map.segment, show_size(address))
    })
    .collect()
}

/// Free and full only when it is that; waiting for reclaim when most of what is used does.
fn character(cell: &MapCell, palette: &Palette) -> char {
    let used = cell.live_blocks + cell.retired_blocks;
    if cell.retired_blocks > cell.live_blocks {
        return palette.retired;
    }
    match used {
        0 => palette.shades[0],
        used if used >= cell.block_count => palette.shades[4],
        used => palette.shades[1 + (used * 3 / cell.block_count) as usize],
    }
}

fn legend(palette: &Palette, cell_bytes: u64) -> String {
    let [free, little, half, much, full] = palette.shades;
    format!(
        "one character: {}; {free} free  {little}{half}{much} partly used  {full} full  {} mostly \
         waiting to be reclaimed",
        show_size(cell_bytes),
        palette.retired
    )
}

fn map_json(map: &SegmentMap) -> Value {
    let cells: Vec<Value> = map
        .cells
        .iter()
        .map(|cell| json!([cell.block_count, cell.live_blocks, cell.retired_blocks]))
        .collect();
    json!({
        "segment": map.segment,
        "cell_bytes": map.cell_bytes,
        "cells_total_live_retired_blocks": cells,
    })
}

fn terminal_columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(COLUMNS, |size| size.ws_col.max(1))
}

/// Whether stdout is a terminal whose locale is UTF-8.
fn speaks_utf8() -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = names
        .iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    let is_utf8 = |locale: std::ffi::OsString| {
        let name = locale.to_string_lossy().to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    };
    std::io::stdout().is_terminal() && locale.is_some_and(is_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(block_count: u64, live_blocks: u64, retired_blocks: u64) -> MapCell {
        MapCell {
            block_count,
            live_blocks,
            retired_blocks,
        }
    }

    #[test]
    fn a_character_tells_how_much_is_used() {
        let drawn: String = [
            cell(8, 0, 0),
            cell(8, 1, 0),
            cell(8, 3, 1),
            cell(8, 7, 0),
            cell(8, 8, 0),
            cell(8, 1, 2),
            cell(8, 5, 3),
            cell(3, 3, 0),
        ]
        .iter()
        .map(|cell| character(cell, &ASCII))
        .collect();
        assert_eq!(drawn, ".-+*#o##");
    }

    #[test]
    fn rows_begin_at_allocation_groups_and_fit() {
        for columns in [1, 40, 80, 200, 1000] {
            let cells = row_cells(columns);
            assert!(cells.is_power_of_two() && (columns < 24 || cells + 16 <= columns.into()));
            for blocks in [1, 16_384, 1 << 20, 25 << 30] {
                let row_blocks = cells * cell_blocks(blocks, cells);
                assert!(blocks.div_ceil(row_blocks) <= ROWS);
                let ag = limits::AG_BLOCKS;
                assert!(row_blocks.is_multiple_of(ag) || ag.is_multiple_of(row_blocks));
            }
        }
    }

    #[test]
    fn a_segment_is_drawn_row_by_row() {
        let map = SegmentMap {
            segment: 1,
            cell_bytes: 4096,
            cells: (0..10).map(|at| cell(1, at % 2, 0)).collect(),
        };
        let rows = ["  1        0 B  .#.#.#.#", "  1   32.0 KiB  .#"];
        assert_eq!(lines(&map, 8, &ASCII), rows);
        assert!(legend(&ASCII, 4096).contains("4.0 KiB"));
    }
}
