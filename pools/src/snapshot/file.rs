//! Snapshots in files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_pickle::{HashableValue, SerOptions, Value};

use super::Snapshot;
use crate::error::PoolError;

impl Snapshot {
    /// Writes the snapshot into a file: JSON if its name ends in `.json`, and a pickle otherwise. Both have the same keys, and
    /// PyTorch's page opens either; `_memory_viz.py` wants a pickle.
    ///
    /// # Errors
    /// [`PoolError::Snapshot`] when the file cannot be written; what was written of it is removed.
    pub fn dump(&self, path: impl AsRef<Path>) -> Result<(), PoolError> {
        let path = path.as_ref();
        let as_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let file = File::create(path).map_err(|error| refused(path, &error))?;
        let mut file = BufWriter::new(file);
        let written = if as_json { self.write_json(&mut file) } else { self.write_pickle(&mut file) };
        let written = written.and_then(|()| file.flush());
        written.map_err(|error| {
            let _ = std::fs::remove_file(path);
            refused(path, &error)
        })
    }

    /// Writes the snapshot as a pickle: protocol 2, without objects, as PyTorch's page reads it.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write_pickle(&self, writer: &mut impl Write) -> std::io::Result<()> {
        let value = pickled(serde_json::to_value(self)?);
        let options = SerOptions::new().proto_v2();
        serde_pickle::value_to_writer(writer, &value, options).map_err(|error| match error {
            serde_pickle::Error::Io(error) => error,
            error => std::io::Error::other(error),
        })
    }

    /// Writes the snapshot as JSON.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write_json(&self, writer: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(writer, self).map_err(std::io::Error::from)
    }
}

/// The same as a pickle's value. Numbers are signed: of unsigned ones nine bytes would be written, and PyTorch's page
/// reads eight.
fn pickled(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(flag) => Value::Bool(flag),
        serde_json::Value::String(text) => Value::String(text),
        serde_json::Value::Array(values) => Value::List(values.into_iter().map(pickled).collect()),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::I64(number),
            None => Value::F64(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::Object(fields) => {
            let field = |(name, value): (String, serde_json::Value)| {
                let value = match (pickled(value), &*name) {
                    // PyTorch has a pair here.
                    (Value::List(pair), "segment_pool_id" | "pool_id") => Value::Tuple(pair),
                    (value, _) => value,
                };
                (HashableValue::String(name), value)
            };
            Value::Dict(fields.into_iter().map(field).collect())
        }
    }
}

fn refused(path: &Path, error: &std::io::Error) -> PoolError {
    PoolError::Snapshot { path: path.to_owned(), kind: error.kind(), reason: error.to_string() }
}
