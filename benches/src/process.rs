//! What the kernel says of this process: page faults and peak resident memory.

use anyhow::{Context, Result};
use procfs::process::Process;

/// Minor page faults of all threads of this process so far.
pub fn minor_faults() -> Result<u64> {
    Ok(Process::myself()?.stat().context("reading this process's counters")?.minflt)
}

/// Peak resident memory of this process so far (`VmHWM`), in KiB.
pub fn peak_resident_kib() -> Result<u64> {
    let status = Process::myself()?.status().context("reading this process's status")?;
    status.vmhwm.context("no VmHWM in this process's status")
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_both() {
        assert!(super::minor_faults().unwrap() > 0);
        assert!(super::peak_resident_kib().unwrap() > 0);
    }
}
