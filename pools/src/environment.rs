//! Options from the environment: `MEMPOOL_CONF`, read once.
//!
//! They hold for the default pools and for every pool as far as its builder does not say otherwise. A
//! malformed variable is told once on standard error, and is an error of every call that makes or names a
//! pool; the default pools, which serve before anybody can be told, then have default options.

use std::sync::OnceLock;

use mempool_arena::{ConfError, Policy, Setting};

use crate::error::PoolError;
use crate::options::PoolOptions;
use crate::os;

/// The variable.
pub(crate) const VARIABLE: &str = "MEMPOOL_CONF";

static OPTIONS: OnceLock<Result<PoolOptions, ConfError>> = OnceLock::new();

/// Reads the variable, once. The caller is inside pool code, and holds the registry's lock, so that no
/// fork comes in between.
pub(crate) fn read() -> Result<&'static PoolOptions, PoolError> {
    let read = OPTIONS.get_or_init(|| {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(PoolOptions::default()) };
        let options = checked(&text.to_string_lossy());
        if let Err(error) = &options {
            os::report(format_args!("{VARIABLE}: {error}; default options are used"));
        }
        options
    });
    read.as_ref().map_err(|source| PoolError::Environment { source: source.clone() })
}

/// Options that some pool can have.
fn checked(text: &str) -> Result<PoolOptions, ConfError> {
    let options: PoolOptions = text.parse()?;
    let resolved = options.resolve(&PoolOptions::default(), Policy::Pages, |_| true)?;
    let setting = Setting { no_split: resolved.no_split, ..Setting::default() };
    resolved.placement.placement(setting)?;
    Ok(options)
}
