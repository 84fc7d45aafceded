//! Tables for people.

use comfy_table::{Cell, CellAlignment, Table, presets};

/// A table without lines; columns in `text` are aligned left, the others right.
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
