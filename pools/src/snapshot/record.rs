//! Dictionaries that were read, by the names of their fields.

use super::pickle::{Tree, Value};

/// Why something is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("{record}: field {field} is missing")]
    Missing { record: &'static str, field: &'static str },
    #[error("{record}: field {field} is not {expected}")]
    Kind { record: &'static str, field: &'static str, expected: &'static str },
    #[error("{record}: {what}")]
    Shape { record: &'static str, what: String },
    #[error("what it says of pools: {0}")]
    Extra(String),
    #[error("one thing stands in it so often that the snapshot would be many times its size")]
    Blown,
}

/// Keys that a dictionary may have: those of all snapshots have far fewer, and each is looked at for each field.
const MAX_FIELDS: usize = 256;

/// What may be made of a file. Its values may be shared, so a short one can stand for more than any memory has.
pub(super) struct Budget(usize);

impl Budget {
    /// Real snapshots come to less than a part for each byte, since what is shared in them is read once.
    pub(super) fn for_source(bytes: usize) -> Self {
        Self(bytes.saturating_mul(8).saturating_add(1 << 16))
    }

    pub(super) fn spend(&mut self, parts: usize) -> Result<(), Wrong> {
        self.0 = self.0.checked_sub(parts).ok_or(Wrong::Blown)?;
        Ok(())
    }
}

/// A dictionary.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    tree: &'a Tree,
    fields: &'a [(Value, Value)],
    /// What it is, for errors.
    name: &'static str,
}

impl<'a> Record<'a> {
    /// A value as a dictionary.
    pub(super) fn new(tree: &'a Tree, value: Value, name: &'static str) -> Result<Self, Wrong> {
        let wrong = |what: &str| Wrong::Shape { record: name, what: what.to_owned() };
        let fields = tree.dict(value).ok_or_else(|| wrong("it is no dictionary"))?;
        if fields.len() > MAX_FIELDS {
            return Err(wrong(&format!("it has {} fields", fields.len())));
        }
        Ok(Self { tree, fields, name })
    }

    /// A field that may be absent, or None.
    pub(super) fn get(&self, field: &str) -> Option<Value> {
        let found = self.fields.iter().rev().find(|(key, _)| self.tree.text(*key) == Some(field));
        found.map(|(_, value)| *value).filter(|value| *value != Value::None)
    }

    fn need(&self, field: &'static str) -> Result<Value, Wrong> {
        self.get(field).ok_or(Wrong::Missing { record: self.name, field })
    }

    fn kind(&self, field: &'static str, expected: &'static str) -> Wrong {
        Wrong::Kind { record: self.name, field, expected }
    }

    /// A number that is not negative.
    pub(super) fn count(&self, field: &'static str) -> Result<usize, Wrong> {
        match self.need(field)? {
            Value::Int(number) => {
                usize::try_from(number).map_err(|_| self.kind(field, "a number that is not negative"))
            }
            _ => Err(self.kind(field, "a whole number")),
        }
    }

    /// As [`count`](Self::count), and `default` if it is absent.
    pub(super) fn count_or(&self, field: &'static str, default: usize) -> Result<usize, Wrong> {
        if self.get(field).is_some() { self.count(field) } else { Ok(default) }
    }

    /// A number of 64 bits, whose sign is nothing: PyTorch has addresses as streams.
    pub(super) fn bits(&self, field: &'static str) -> Result<u64, Wrong> {
        match self.get(field) {
            None => Ok(0),
            Some(Value::Int(number)) => Ok(number as u64),
            Some(_) => Err(self.kind(field, "a whole number")),
        }
    }

    /// A number of 32 bits; 0 if it is absent.
    pub(super) fn short(&self, field: &'static str) -> Result<u32, Wrong> {
        let number = self.count_or(field, 0)?;
        u32::try_from(number).map_err(|_| self.kind(field, "a number of 32 bits"))
    }

    /// A flag; false if it is absent.
    pub(super) fn flag(&self, field: &'static str) -> Result<bool, Wrong> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Flag(flag)) => Ok(flag),
            Some(_) => Err(self.kind(field, "true or false")),
        }
    }

    /// A text; empty if it is absent.
    pub(super) fn text(&self, field: &'static str, budget: &mut Budget) -> Result<String, Wrong> {
        let Some(value) = self.get(field) else { return Ok(String::new()) };
        let text = self.tree.text(value).ok_or_else(|| self.kind(field, "a text"))?;
        budget.spend(text.len() / 16)?;
        Ok(text.to_owned())
    }

    /// A list; empty if it is absent.
    pub(super) fn list(&self, field: &'static str) -> Result<&'a [Value], Wrong> {
        match self.get(field) {
            None => Ok(&[]),
            Some(value) => self.tree.list(value).ok_or_else(|| self.kind(field, "a list")),
        }
    }

    /// A pair of numbers; (0, 0) if it is absent.
    pub(super) fn pair(&self, field: &'static str) -> Result<(u64, u64), Wrong> {
        match self.list(field)? {
            [] => Ok((0, 0)),
            [Value::Int(first), Value::Int(second)] => Ok((*first as u64, *second as u64)),
            _ => Err(self.kind(field, "a pair of numbers")),
        }
    }

    /// A record in this one.
    pub(super) fn record(&self, field: &'static str) -> Result<Option<Self>, Wrong> {
        self.get(field).map(|value| Self::new(self.tree, value, field)).transpose()
    }
}

/// A value as JSON has it, for what is read by its own rules.
pub(super) fn to_json(tree: &Tree, value: Value, budget: &mut Budget) -> Result<serde_json::Value, Wrong> {
    to_json_within(tree, value, budget, 64)
}

fn to_json_within(
    tree: &Tree,
    value: Value,
    budget: &mut Budget,
    depth: usize,
) -> Result<serde_json::Value, Wrong> {
    budget.spend(1)?;
    let deeper = depth.checked_sub(1).ok_or(Wrong::Blown)?;
    Ok(match value {
        Value::None => serde_json::Value::Null,
        Value::Flag(flag) => flag.into(),
        Value::Int(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Node(_) => {
            if let Some(text) = tree.text(value) {
                budget.spend(text.len() / 16)?;
                text.into()
            } else if let Some(list) = tree.list(value) {
                let list = list.iter().map(|&one| to_json_within(tree, one, budget, deeper));
                list.collect::<Result<Vec<_>, _>>()?.into()
            } else {
                let mut fields = serde_json::Map::new();
                for &(key, value) in tree.dict(value).unwrap_or_default() {
                    let key = tree.text(key).ok_or(Wrong::Extra("a key that is no text".to_owned()))?;
                    budget.spend(key.len() / 16)?;
                    fields.insert(key.to_owned(), to_json_within(tree, value, budget, deeper)?);
                }
                fields.into()
            }
        }
    })
}
