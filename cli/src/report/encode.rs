//! What the page shows, as one blob: the length of its header, the header as JSON, and columns.

use serde::Serialize;
use serde_json::Value;

use super::Finding;
use super::columns::{Column, Columns};
use super::data::{Data, Device, Event, Kind, NONE, Names, Origin, readable};
use super::figures::Figures;
use super::lifetimes::{Lifetime, Lifetimes};

/// Bits of a block's flags. The page has the same.
const IS_KEPT: u8 = 1;
const HAS_ORIGIN: u8 = 2;
const IS_OLDER: u8 = 4;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Header<'a> {
    title: String,
    time_us: u64,
    dropped_entries: Option<u64>,
    findings: Vec<Finding>,
    names: &'a Names,
    devices: Vec<DeviceHeader<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceHeader<'a> {
    name: &'a str,
    pools: &'a [Value],
    /// Whether the history tells when memory was mapped.
    tells_reserved: bool,
    contradictions: u32,
    events: EventColumns,
    blocks: BlockColumns,
    pieces: PieceColumns,
    figures: FigureColumns,
}

#[derive(Serialize)]
struct EventColumns {
    kind: Column,
    time: Column,
    step: Column,
    block: Column,
    bytes: Column,
    label: Column,
    thread: Column,
    stack: Column,
    /// Of requests that found no memory, what the device had free; else 0.
    free: Column,
}

#[derive(Serialize)]
struct BlockColumns {
    address: Column,
    bytes: Column,
    requested: Column,
    begin: Column,
    freed: Column,
    end: Column,
    owner: Column,
    flags: Column,
    label: Column,
    stack: Column,
    thread: Column,
    step: Column,
    position: Column,
    time: Column,
}

#[derive(Serialize)]
struct PieceColumns {
    address: Column,
    bytes: Column,
    begin: Column,
    end: Column,
    owner: Column,
    segment: Column,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FigureColumns {
    reserved: Column,
    free: Column,
    largest_free: Column,
}

/// The blob of all that the page shows.
pub(super) fn encode(data: &Data, title: &str, findings: &[Finding]) -> Vec<u8> {
    let mut columns = Columns::default();
    let header = Header {
        title: readable(title),
        time_us: data.time_us,
        dropped_entries: data.dropped_entries,
        findings: findings.iter().map(shown).collect(),
        names: &data.names,
        devices: data.devices.iter().map(|one| device(one, &mut columns)).collect(),
    };
    let mut header = serde_json::to_vec(&header).expect("names and numbers become JSON");
    // Spaces behind it, so that columns begin where typed arrays may.
    header.resize((4 + header.len()).next_multiple_of(8) - 4, b' ');
    let len = u32::try_from(header.len()).expect("names are shorter than 4 GiB");
    [&len.to_le_bytes(), &*header, columns.bytes()].concat()
}

/// A finding may quote names.
fn shown(Finding { severity, text, advice }: &Finding) -> Finding {
    Finding { severity: *severity, text: readable(text), advice: readable(advice) }
}

fn device<'a>(device: &'a Device, columns: &mut Columns) -> DeviceHeader<'a> {
    let lifetimes = Lifetimes::of(device);
    let figures = Figures::of(&lifetimes, device.events.len());
    let of_memory = [Kind::Mapped, Kind::Unmapped, Kind::PageMapped, Kind::PageUnmapped];
    DeviceHeader {
        name: &device.name,
        pools: &device.pools,
        tells_reserved: device.events.iter().any(|event| of_memory.contains(&event.kind)),
        contradictions: lifetimes.contradictions,
        events: event_columns(&device.events, &lifetimes, columns),
        blocks: block_columns(&lifetimes.blocks, columns),
        pieces: piece_columns(&lifetimes, columns),
        figures: figure_columns(&figures, columns),
    }
}

fn event_columns(events: &[Event], lifetimes: &Lifetimes, columns: &mut Columns) -> EventColumns {
    // Threads that note their times at once may be noted the other way round; the page's time does not go back.
    let mut latest = 0;
    let times = events.iter().map(|event| {
        latest = event.origin.time_us.max(latest);
        latest
    });
    // Of what a block tells, the page looks at the block.
    let of_shortage = |value: fn(&Event) -> usize| {
        move |event: &Event| if event.kind == Kind::OutOfMemory { value(event) as u64 } else { 0 }
    };
    EventColumns {
        kind: columns.u8(events.iter().map(|event| event.kind as u8)),
        time: columns.steps(times),
        step: columns.u32(events.iter().map(|event| event.origin.step)),
        block: columns.u32(lifetimes.blocks_of_events.iter().copied()),
        bytes: columns.f64(events.iter().map(|event| event.bytes as u64)),
        label: columns.u32(events.iter().map(|event| event.origin.label)),
        thread: columns.u32(events.iter().map(|event| event.origin.thread)),
        stack: columns.u32(events.iter().map(|event| event.origin.stack)),
        free: columns.f64(events.iter().map(of_shortage(|event| event.address))),
    }
}

fn block_columns(blocks: &[Lifetime], columns: &mut Columns) -> BlockColumns {
    let flags = |block: &Lifetime| {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let is_older = block.origin.is_some_and(|origin| origin.is_older);
        bit(block.is_kept, IS_KEPT) | bit(block.origin.is_some(), HAS_ORIGIN) | bit(is_older, IS_OLDER)
    };
    let origin = |value: fn(&Origin) -> u32, none: u32| {
        move |block: &Lifetime| block.origin.as_ref().map_or(none, value)
    };
    BlockColumns {
        address: columns.steps(blocks.iter().map(|block| block.range.start as u64)),
        bytes: columns.f64(blocks.iter().map(|block| block.range.len() as u64)),
        requested: columns.f64(blocks.iter().map(|block| block.requested_bytes as u64)),
        begin: columns.u32(blocks.iter().map(|block| block.begin)),
        freed: columns.u32(blocks.iter().map(|block| block.freed)),
        end: columns.u32(blocks.iter().map(|block| block.end)),
        owner: columns.u32(blocks.iter().map(|block| block.owner)),
        flags: columns.u8(blocks.iter().map(flags)),
        label: columns.u32(blocks.iter().map(origin(|origin| origin.label, 0))),
        stack: columns.u32(blocks.iter().map(origin(|origin| origin.stack, NONE))),
        thread: columns.u32(blocks.iter().map(origin(|origin| origin.thread, 0))),
        step: columns.u32(blocks.iter().map(origin(|origin| origin.step, NONE))),
        position: columns.u32(blocks.iter().map(origin(|origin| origin.position, NONE))),
        time: columns.f64(blocks.iter().map(|block| block.origin.map_or(0, |origin| origin.time_us))),
    }
}

fn piece_columns(lifetimes: &Lifetimes, columns: &mut Columns) -> PieceColumns {
    let pieces = &lifetimes.pieces;
    PieceColumns {
        address: columns.f64(pieces.iter().map(|piece| piece.range.start as u64)),
        bytes: columns.f64(pieces.iter().map(|piece| piece.range.len() as u64)),
        begin: columns.u32(pieces.iter().map(|piece| piece.begin)),
        end: columns.u32(pieces.iter().map(|piece| piece.end)),
        owner: columns.u32(pieces.iter().map(|piece| piece.region.owner)),
        segment: columns.u32(pieces.iter().map(|piece| piece.region.segment)),
    }
}

fn figure_columns(figures: &Figures, columns: &mut Columns) -> FigureColumns {
    let wide = |values: &[usize]| values.iter().map(|&bytes| bytes as u64).collect::<Vec<u64>>();
    FigureColumns {
        reserved: columns.steps(wide(&figures.reserved)),
        free: columns.steps(wide(&figures.free)),
        largest_free: columns.steps(wide(&figures.largest_free)),
    }
}

#[cfg(test)]
mod tests;
