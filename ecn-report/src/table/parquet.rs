//! Tables as Parquet: one row group, all columns optional, no compression.

use std::io;
use std::sync::Arc;

use ::parquet::basic::{LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::types::Type;

use super::{Cell, ERROR, Table};

/// The type of a column: the narrowest that can represent all of its values.
fn physical(name: &str, cells: impl Iterator<Item = Cell> + Clone) -> Physical {
    // Always text for errors, even if no run failed.
    if name == ERROR || cells.clone().any(|cell| matches!(cell, Cell::Text(_))) {
        return Physical::BYTE_ARRAY;
    }
    let all_whole = cells
        .clone()
        .all(|cell| matches!(cell, Cell::Null | Cell::Whole(_)));
    match all_whole && cells.clone().any(|cell| cell != Cell::Null) {
        true => Physical::INT64,
        false => Physical::DOUBLE,
    }
}

pub(super) fn encoded(table: &Table) -> io::Result<Vec<u8>> {
    encode(table).map_err(io::Error::other)
}

fn encode(table: &Table) -> Result<Vec<u8>, ParquetError> {
    let cells = |column: usize| table.rows.iter().map(move |row| row[column].clone());
    let names = table.columns.iter().enumerate();
    let types: Vec<Physical> = names.map(|(at, name)| physical(name, cells(at))).collect();
    let field = |(name, physical): (&String, &Physical)| {
        let text = (*physical == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let field = Type::primitive_type_builder(name, *physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(text);
        field.build().map(Arc::new)
    };
    let fields = table.columns.iter().zip(&types).map(field);
    let fields = fields.collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("table")
        .with_fields(fields)
        .build()?;
    let properties = WriterProperties::builder().build();
    let mut bytes = Vec::new();
    let mut file = SerializedFileWriter::new(&mut bytes, schema.into(), properties.into())?;
    let mut group = file.next_row_group()?;
    for (column, physical) in types.iter().enumerate() {
        let cells = cells(column);
        match physical {
            Physical::INT64 => column_of::<Int64Type>(&mut group, cells, |cell| match cell {
                Cell::Whole(number) => Some(number),
                _ => None,
            }),
            Physical::DOUBLE => column_of::<DoubleType>(&mut group, cells, |cell| cell.number()),
            _ => column_of::<ByteArrayType>(&mut group, cells, |cell| match cell {
                Cell::Null => None,
                cell => Some(ByteArray::from(cell.to_string().into_bytes())),
            }),
        }?;
    }
    group.close()?;
    file.close()?;
    Ok(bytes)
}

/// Writes the next column.
fn column_of<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    cells: impl Iterator<Item = Cell> + Clone,
    value: impl Fn(Cell) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<Option<T::T>> = cells.map(value).collect();
    let is_present: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
    let values: Vec<T::T> = values.into_iter().flatten().collect();
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("too few columns".to_owned()))?;
    column
        .typed::<T>()
        .write_batch(&values, Some(&is_present), None)?;
    column.close()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ::parquet::file::reader::{FileReader as _, SerializedFileReader};
    use ::parquet::record::Field;
    use std::io::Write as _;

    #[test]
    fn what_is_written_is_read_again() {
        let rows = [
            vec![Cell::Whole(-1), Cell::Whole(2), Cell::from("a"), Cell::Null],
            vec![Cell::Null, Cell::Number(0.1), Cell::Whole(7), Cell::Null],
        ];
        let columns = ["whole", "number", "text", "null"].map(|name| (name, ""));
        let bytes = encoded(&Table::new(&columns, rows)).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let read = rows.iter().map(|row| {
            let columns = row.get_column_iter();
            columns
                .map(|(name, field)| (name.as_str(), field.clone()))
                .collect::<Vec<_>>()
        });
        let expected = [
            [
                ("whole", Field::Long(-1)),
                ("number", Field::Double(2.0)),
                ("text", Field::Str("a".into())),
                ("null", Field::Null),
            ],
            [
                ("whole", Field::Null),
                ("number", Field::Double(0.1)),
                ("text", Field::Str("7".into())),
                ("null", Field::Null),
            ],
        ];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}
