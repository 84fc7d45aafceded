//! Tables for terminals.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table without rules; columns in `text` are left-aligned, the others right-aligned.
pub fn plain_table(header: &[&str], text: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_last = index + 1 == header.len();
        column.set_padding((0, if is_last { 0 } else { 2 }));
        column.set_cell_alignment(match text.contains(&index) {
            true => CellAlignment::Left,
            false => CellAlignment::Right,
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_left_and_numbers_right() {
        let mut table = plain_table(&["NAME", "COUNT", "NOTE"], &[0, 2]);
        table.add_row(["a", "1", ""]).add_row(["b", "100000", "c"]);
        let expected = "NAME   COUNT  NOTE\na          1\nb     100000  c\n";
        assert_eq!(table_text(&table), expected);
    }
}
