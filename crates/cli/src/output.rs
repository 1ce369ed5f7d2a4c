//! Writing to standard output; a reader that has gone away is no error.

use std::io::{self, Write as _};

use crate::exit::{OK, Outcome};

/// Writes bytes as they are.
pub(super) fn bytes(bytes: &[u8]) -> Outcome {
    offer(bytes).map(|_taken| OK)
}

/// Writes bytes as they are; false when the reader has gone away, so that nobody goes on for it.
pub(super) fn offer(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes a line.
pub(super) fn line(text: &str) -> Outcome {
    bytes(format!("{text}\n").as_bytes())
}

/// Columns as wide as their widest cell; the last is not padded.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = widths[column].saturating_sub(cell.chars().count());
            line.push_str(cell);
            line.push_str(&" ".repeat(pad + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
