//! Snapshots as pickles, in PyTorch's layout.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::pickle::Writer;
use super::{Block, Frame, Segment, Snapshot, TraceEntry};

/// What has the same frames: a call stack, a label and a thread.
type FramesKey<'a> = (Option<u32>, &'a str, &'a str);

/// What writes a snapshot.
struct Pickler<'a, W> {
    snapshot: &'a Snapshot,
    to: Writer<W>,
    /// Frames that stand in the pickle already.
    frames: HashMap<FramesKey<'a>, u32>,
}

/// Writes a snapshot as a pickle.
pub(super) fn write(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    let mut pickler = Pickler { snapshot, to: Writer::new(out)?, frames: HashMap::new() };
    pickler.root()?;
    pickler.to.finish()
}

impl<'a, W: Write> Pickler<'a, W> {
    fn root(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        self.begin()?;
        self.to.text("segments")?;
        self.list(&snapshot.segments, Self::segment)?;
        self.to.text("device_traces")?;
        self.list(&snapshot.device_traces, |this, trace| this.list(trace, Self::entry))?;
        self.json("allocator_settings", &snapshot.allocator_settings)?;
        self.to.text("external_annotations")?;
        self.to.list::<()>(&[], |_, ()| Ok(()))?;
        self.json("mempool", &snapshot.mempool)?;
        self.end()
    }

    fn segment(&mut self, segment: &'a Segment) -> io::Result<()> {
        self.begin()?;
        self.count("device", segment.device)?;
        self.count("address", segment.address)?;
        self.count("total_size", segment.total_size)?;
        self.count("allocated_size", segment.allocated_size)?;
        self.count("active_size", segment.active_size)?;
        self.count("requested_size", segment.requested_size)?;
        self.bits("stream", segment.stream)?;
        self.json("segment_type", &segment.segment_type)?;
        self.pool_id("segment_pool_id", segment.segment_pool_id)?;
        self.flag("is_expandable", segment.is_expandable)?;
        self.to.text("frames")?;
        self.to.list::<()>(&[], |_, ()| Ok(()))?;
        self.to.text("blocks")?;
        self.list(&segment.blocks, Self::block)?;
        self.text("pool_name", &segment.pool_name)?;
        self.json("order", &segment.order)?;
        self.end()
    }

    fn block(&mut self, block: &'a Block) -> io::Result<()> {
        self.begin()?;
        self.count("address", block.address)?;
        self.count("size", block.size)?;
        self.count("requested_size", block.requested_size)?;
        self.json("state", &block.state)?;
        let by = block.owner.as_ref().map_or(("", ""), |owner| (&owner.label, &owner.thread));
        self.frames(block.stack, by.0, by.1)?;
        self.stack(block.stack)?;
        self.json("owner", &block.owner)?;
        self.flag("is_kept", block.is_kept)?;
        self.end()
    }

    fn entry(&mut self, entry: &'a TraceEntry) -> io::Result<()> {
        self.begin()?;
        self.text("action", entry.action.name())?;
        if let Some(addr) = entry.addr {
            self.count("addr", addr)?;
        }
        if let Some(free) = entry.device_free {
            self.count("device_free", free)?;
        }
        self.count("size", entry.size)?;
        self.bits("stream", entry.stream)?;
        self.bits("time_us", entry.time_us)?;
        self.text("compile_context", &entry.compile_context)?;
        self.text("user_metadata", &entry.user_metadata)?;
        self.pool_id("pool_id", entry.pool_id)?;
        self.frames(entry.stack, &entry.user_metadata, &entry.thread)?;
        self.stack(entry.stack)?;
        self.text("thread", &entry.thread)?;
        self.bits("step", entry.step.into())?;
        self.bits("position", entry.position.into())?;
        self.end()
    }

    fn frames(&mut self, stack: Option<u32>, label: &'a str, thread: &'a str) -> io::Result<()> {
        self.to.text("frames")?;
        let key = (stack, label, if label.is_empty() { "" } else { thread });
        if let Some(&at) = self.frames.get(&key) {
            return self.to.repeat(at);
        }
        let frames = self.snapshot.frames_of(key.0, key.1, key.2);
        self.to.list(&frames, |to, Frame { name, filename, line }| {
            to.dict(|to| {
                to.text("name")?;
                to.text(name)?;
                to.text("filename")?;
                to.text(filename)?;
                to.text("line")?;
                to.int((*line).into())
            })
        })?;
        let at = self.to.remember()?;
        self.frames.insert(key, at);
        Ok(())
    }

    fn stack(&mut self, stack: Option<u32>) -> io::Result<()> {
        match stack {
            Some(at) => self.bits("stack", at.into()),
            None => Ok(()),
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        self.to.begin_dict()
    }

    fn end(&mut self) -> io::Result<()> {
        self.to.end_dict()
    }

    fn list<T>(
        &mut self,
        items: &'a [T],
        one: impl Fn(&mut Self, &'a T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.to.begin_list()?;
        for batch in Writer::<W>::batches(items) {
            self.to.begin_batch()?;
            batch.iter().try_for_each(|item| one(self, item))?;
            self.to.end_batch()?;
        }
        Ok(())
    }

    fn text(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.to.text(name)?;
        self.to.text(text)
    }

    fn count(&mut self, name: &str, count: usize) -> io::Result<()> {
        self.bits(name, count as u64)
    }

    /// Numbers are signed in pickles: of unsigned ones nine bytes would be written, and PyTorch's page reads eight.
    fn bits(&mut self, name: &str, bits: u64) -> io::Result<()> {
        self.to.text(name)?;
        self.to.int(bits as i64)
    }

    fn flag(&mut self, name: &str, flag: bool) -> io::Result<()> {
        self.to.text(name)?;
        self.to.flag(flag)
    }

    fn pool_id(&mut self, name: &str, (first, second): (u64, u64)) -> io::Result<()> {
        self.to.text(name)?;
        self.to.pair((first as i64, second as i64))
    }

    fn json(&mut self, name: &str, value: &impl Serialize) -> io::Result<()> {
        self.to.text(name)?;
        self.to.json(&serde_json::to_value(value)?)
    }
}
