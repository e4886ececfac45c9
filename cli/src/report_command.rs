//! `mempool report`.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use mempool_cli::report::{self, Finding};
use mempool_pools::snapshot::Snapshot;

use crate::console::Console;
use crate::input;

/// What is read, what the page has, and how it is used.
const DETAILS: &str = "\
SNAPSHOT is what `Snapshot::dump(\"now.json\")` writes, as JSON or a pickle, or PyTorch's `_dump_snapshot`. Memory over time, the map at earlier moments and the names of blocks
need a history: `record_history(HistoryOptions::default())` before what is looked at, and `label(\"...\")` around its parts.

The page has, for one device at a time:
  what stands out     findings with advice, and the figures of the snapshot in plain words
  Over time           memory in use, stacked by label, call site, thread, pool or stream; what is reserved; the peak;
                      requests that found no memory; fragmentation by two measures
  Map                 each segment at any moment of the history: blocks, free memory, gaps of less than a page, memory that is
                      kept; a block that is selected tells where, when and by whom it was allocated
  Blocks              what is live at that moment, by group and one by one, to search and to sort: by size, by age
  Pools and streams   figures of each

Measures of fragmentation:
  unused              1 - in use / reserved
  scattered           1 - largest free range / free
Blocks of earlier moments have the size that was asked for, rounded up as pools do: 512 bytes on devices, 64 on the host.

Keys on the page:
  Tab, Shift-Tab      go from one part to the next; arrows change tabs and the slider
  in charts           Left and Right move the moment, + and - zoom, Shift-Left and Shift-Right move what is shown, 0 shows all
  on the map          arrows select blocks, Up and Down go to the next segment, + and - zoom, comma and full stop move the moment

The page asks for nothing from any network and is forbidden to. It holds the snapshot, with labels, thread names and file
names: whoever gets the page can read them. A history of 100,000 events makes a page of 1 MB or so.

The exit status is 0 if the page was written, and 1 otherwise.

Examples:
  mempool report now.json
  mempool report now.json -o leak.html
  ssh server cat now.json | mempool report - -o - > now.html";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// The snapshot; `-` is standard input.
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,
    /// The file to write; `-` is standard output. By default that of the snapshot, with `.html` for its ending, where the
    /// command runs.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What the page calls the snapshot. By default the name of its file.
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// What stands for standard output.
const STANDARD_OUTPUT: &str = "-";

pub(crate) fn run(args: &Args) -> Result<()> {
    let console = Console::new()?;
    let snapshot = read(&args.snapshot, &console)
        .with_context(|| format!("reading {}", input::described(&args.snapshot)))?;
    let name = name(&args.snapshot);
    let title = args.title.as_deref().unwrap_or(&name);
    console.begin("making the page", 0);
    let page = console.wait_for(|| {
        let findings: Vec<Finding> = snapshot.diagnose().findings.iter().map(Finding::from).collect();
        report::page(&snapshot, title, &findings)
    });
    console.finish();
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.html")));
    if output.as_os_str() == STANDARD_OUTPUT {
        return console.print(|out| out.write_all(page.as_bytes()));
    }
    fs::write(&output, &page).with_context(|| format!("writing {}", output.display()))?;
    console.tell(format_args!("{} is written", output.display()));
    Ok(())
}

fn read(path: &Path, console: &Console) -> Result<Snapshot> {
    let mut bytes = Vec::new();
    input::open(path, console)?.read_to_end(&mut bytes)?;
    Ok(Snapshot::read(&bytes[..])?)
}

/// The name of a snapshot: its file's without the ending.
fn name(path: &Path) -> String {
    let name = input::name(path);
    name.strip_suffix(".json").map_or_else(|| name.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_called_as_their_files_are() {
        for (path, expected) in [("-", "stdin"), ("a/now.json", "now"), ("b.pickle", "b"), ("c", "c")] {
            assert_eq!(name(Path::new(path)), expected);
        }
    }
}
