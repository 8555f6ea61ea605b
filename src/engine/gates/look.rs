//! What the gates would say to a call that came now. Nothing is taken.

use super::entry::{Entrant, Refused};
use super::{Gate, Pausing};
use crate::retry::pause::Whom;

impl Gate {
    /// Turns a call away that would get neither leave nor a place in a line.
    pub(in crate::engine) fn turn_away(&self, entrant: &Entrant) -> Result<(), Refused> {
        let Some(refused) = self.would_refuse(entrant) else { return Ok(()) };
        match refused {
            Refused::Paused(..) | Refused::OverBudget => {}
            Refused::BreakerOpen(..) => self.circuit.iter().for_each(|circuit| circuit.refused.add()),
            Refused::Full => self.places.refused.add(),
        }
        Err(refused)
    }

    /// Why it would be.
    pub(in crate::engine) fn would_refuse(&self, entrant: &Entrant) -> Option<Refused> {
        let paused =
            [entrant.whom, Whom::Everybody].into_iter().find_map(|whom| self.upstream.pausing.refuses(entrant, whom));
        let shut = || self.look(entrant.may_probe).err().map(|wait| Refused::BreakerOpen(self.last_failure(), wait));
        let full = || (entrant.is_new && !self.places.has_room_for(&entrant.scope)).then_some(Refused::Full);
        paused.or_else(shut).or_else(full)
    }
}

impl Pausing {
    fn refuses(&self, entrant: &Entrant, whom: Whom) -> Option<Refused> {
        if !self.has_any() {
            return None;
        }
        let queue = self.queue(whom)?;
        let wait = self.wait(whom).unwrap_or_default();
        let may_wait = entrant.has_time_for(wait) && queue.has_room(entrant.is_new);
        (!may_wait).then_some(Refused::Paused(whom, wait))
    }
}
