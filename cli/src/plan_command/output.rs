//! The file of offsets.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use mempool_cli::plan::buffers::{self, HEADER};
use mempool_pools::arena::plan::{Buffer, Plan};

/// What is to be written when all is planned: the file may be the input, or hold what somebody wants.
#[derive(Debug)]
pub(super) struct Output {
    text: Vec<u8>,
    path: PathBuf,
}

impl Output {
    pub(super) fn new(path: &Path) -> Self {
        Self { text: format!("{HEADER}\n").into_bytes(), path: path.to_owned() }
    }

    /// Adds a plan.
    pub(super) fn write<I: Display>(&mut self, ids: &[I], buffers: &[Buffer], plan: &Plan) -> Result<()> {
        Ok(buffers::write(&mut self.text, ids, buffers, plan)?)
    }

    /// Writes the file.
    pub(super) fn finish(self) -> Result<()> {
        fs::write(&self.path, self.text).with_context(|| format!("writing {}", self.path.display()))
    }
}
