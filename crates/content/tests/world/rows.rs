//! Rows of the user's, and their values as SQL writes them.

use super::Rows;
use larder::SqlValue;

pub fn note_row(rows: &mut Rows, mut values: Vec<SqlValue>) {
    let SqlValue::Integer(id) = values.remove(0) else {
        panic!("a key")
    };
    assert_eq!(rows.insert(id, values), None, "two rows with one key");
}

/// As SQL writes it.
pub fn literal(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => "NULL".to_owned(),
        // The least number has no literal.
        SqlValue::Integer(i64::MIN) => format!("({} - 1)", i64::MIN + 1),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => format!("{number:e}"),
        SqlValue::Text(text) => format!("'{}'", text.replace('\'', "''")),
        SqlValue::Blob(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{digits}'")
        }
    }
}
