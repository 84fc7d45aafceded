//! Tables for display.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A table without rules; columns in `text` are left-aligned, the others right-aligned.
pub fn plain_table(header: &[&str], text: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.iter().enumerate().map(|(index, name)| {
            let align = if text.contains(&index) {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            };
            Cell::new(name).set_alignment(align)
        }));
    for index in 0..header.len() {
        if let Some(column) = table.column_mut(index) {
            let is_text = text.contains(&index);
            column.set_padding((0, if index + 1 == header.len() { 0 } else { 2 }));
            column.set_cell_alignment(if is_text {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
        }
    }
    table
}

/// A table at most `columns` characters wide: long cells are wrapped.
pub fn wrapped_table(header: &[&str], text: &[usize], columns: u16) -> Table {
    let mut table = plain_table(header, text);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(columns);
    table
}

/// The text of a table without spaces at line ends, ending in a line break.
pub fn table_text(table: &Table) -> String {
    let mut text: String = table
        .to_string()
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    if text.is_empty() {
        text.push('\n');
    }
    text
}

/// A count in at most five characters: `99999`, `588k`, `1.23M`.
pub fn short_count(count: u64) -> String {
    if count < 100_000 {
        return count.to_string();
    }
    let mut value = count as f64;
    for unit in ["k", "M", "G", "T", "P", "E"] {
        value /= 1000.0;
        let decimals = match value {
            v if v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        if value < 999.5 {
            return format!("{value:.decimals$}{unit}");
        }
    }
    count.to_string()
}
