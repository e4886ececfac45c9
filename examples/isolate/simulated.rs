//! The program on addresses alone: placements over a simulated device.

use anyhow::Result;
use candle_mempool::{ArenaError, Conf, Policy};
use mempool_arena::{Arena, Request, Setting, SimulatedUpstream};

use crate::limits;
use crate::steps::{Kind, Memory, State};

/// A placement, and one more where survivors have a pool.
pub(crate) struct Simulated {
    arenas: Vec<Arena<SimulatedUpstream>>,
}

impl Simulated {
    pub(crate) fn new(policy: Policy, isolated: bool) -> Result<Self> {
        let (passing, survivors) = limits(isolated);
        let arena = |capacity_bytes| -> Result<_> {
            let upstream = SimulatedUpstream::builder().capacity_bytes(capacity_bytes).build();
            Ok(Arena::from_boxed(Conf::of(policy).placement(Setting::default())?, upstream))
        };
        let arenas = [passing].into_iter().chain(survivors).map(arena).collect::<Result<_>>()?;
        Ok(Self { arenas })
    }
}

impl Memory for Simulated {
    /// The arena's place in the list, and the address.
    type Block = (usize, usize);

    fn allocate(&mut self, kind: Kind, bytes: usize) -> Result<Option<Self::Block>> {
        let at = if kind == Kind::Survivor { self.arenas.len() - 1 } else { 0 };
        match self.arenas[at].allocate(Request::new(bytes)) {
            Ok(placed) => Ok(Some((at, placed.addr))),
            Err(ArenaError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn free(&mut self, (at, addr): Self::Block) -> Result<()> {
        self.arenas[at].free(addr)?;
        Ok(())
    }

    fn state(&self) -> State {
        let mut state = State::default();
        for arena in &self.arenas {
            state.reserved_bytes += arena.stats().reserved.current;
            state.allocated_bytes += arena.stats().allocated.current;
            state.largest_free_bytes = state.largest_free_bytes.max(arena.largest_free_bytes());
        }
        state
    }
}
