//! Callers of one request in this process share one flight: the first flies, the others wait for where it lands.
//!
//! Another request with the same key has a flight of its own: whose the key is, the record says and no flight can know.
//! Nobody polls: a flight is a watch channel. The map is shared by all runtime threads. A flight whose end the store has
//! not taken stays on the map when it has landed: nobody else knows what came of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::conclusion::Conclusion;
use crate::operation::{Fingerprint, OperationId};

/// How far a flight has come.
#[derive(Clone, Debug)]
enum Phase {
    /// The first caller stands in a line of the gates, and nothing of the call has begun here.
    InLine,
    /// The store has not said yet who owns the key: it may be a replay in no time.
    Claiming,
    /// Somebody, here or elsewhere, is at work on it.
    Running,
    Landed(Arc<Conclusion>),
}

/// All flights of this process.
#[derive(Clone, Default)]
pub struct Flights(Arc<Mutex<HashMap<Name, Flight>>>);

/// What a flight is known by: the operation, and the request that is to be made under its key.
type Name = (OperationId, Fingerprint);

#[derive(Clone)]
struct Flight {
    phase: watch::Receiver<Phase>,
    /// Its end is still to be taken by the store.
    is_unsettled: bool,
    /// Where it landed, unsettled.
    landed: Option<Arc<Conclusion>>,
}

impl Flight {
    fn is_in_line(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::InLine)
    }
}

/// What a caller finds who wants to fly.
pub enum Seat {
    /// Nobody flies with this request: fly.
    Pilot(Pilot),
    /// Wait for the pilot.
    Passenger(Passenger),
    /// It has landed, and the store does not know yet.
    Unsettled(Arc<Conclusion>),
}

impl Flights {
    pub fn enter(&self, id: OperationId, fingerprint: Fingerprint) -> Seat {
        let name = (id, fingerprint);
        let mut flights = self.lock();
        match flights.entry(name) {
            Entry::Occupied(flight) => match &flight.get().landed {
                Some(conclusion) => Seat::Unsettled(conclusion.clone()),
                None => Seat::Passenger(Passenger { phase: flight.get().phase.clone() }),
            },
            Entry::Vacant(free) => {
                let (sender, phase) = watch::channel(Phase::Claiming);
                free.insert(Flight { phase, is_unsettled: false, landed: None });
                Seat::Pilot(Pilot { name, flights: self.clone(), phase: sender, landed: false })
            }
        }
    }

    /// The running flight of an operation, for those who only want to see it land.
    pub fn watch(&self, id: OperationId, fingerprint: Fingerprint) -> Option<Passenger> {
        let flights = self.lock();
        flights.get(&(id, fingerprint)).map(|flight| Passenger { phase: flight.phase.clone() })
    }

    /// Takes a flight off the map. Its passengers still wait for it; whoever comes next may fly. One that has landed is
    /// as good as settled.
    pub fn give_up(&self, id: OperationId, fingerprint: Fingerprint) {
        let name = (id, fingerprint);
        let mut flights = self.lock();
        if flights.get(&name).is_some_and(|flight| flight.landed.is_none()) {
            flights.remove(&name);
        }
    }

    /// Takes the flight of one who still stands in line off the map: he finds what has come of the call when his turn comes.
    pub fn overtake(&self, id: OperationId, fingerprint: Fingerprint) {
        let name = (id, fingerprint);
        let mut flights = self.lock();
        if flights.get(&name).is_some_and(Flight::is_in_line) {
            flights.remove(&name);
        }
    }

    /// Off the map before anybody is told, so that whoever comes after the landing asks the store.
    fn land(&self, pilot: &Pilot, conclusion: Option<&Arc<Conclusion>>) {
        let mut flights = self.lock();
        match of_channel(&mut flights, &pilot.name, &pilot.phase.subscribe()) {
            Some(flight) if flight.is_unsettled && conclusion.is_some() => flight.landed = conclusion.cloned(),
            Some(_) => drop(flights.remove(&pilot.name)),
            None => {}
        }
    }

    fn settle(&self, unsettled: &Unsettled) {
        let mut flights = self.lock();
        match of_channel(&mut flights, &unsettled.name, &unsettled.phase) {
            Some(flight) if flight.landed.is_some() => drop(flights.remove(&unsettled.name)),
            Some(flight) => flight.is_unsettled = false,
            None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The flight of this name, unless another pilot has the seat by now.
fn of_channel<'f>(
    flights: &'f mut HashMap<Name, Flight>,
    name: &Name,
    phase: &watch::Receiver<Phase>,
) -> Option<&'f mut Flight> {
    flights.get_mut(name).filter(|flight| flight.phase.same_channel(phase))
}

/// Held by whoever still brings the end of a run to the store. Every exit takes a landed flight off the map.
pub struct Unsettled {
    name: Name,
    flights: Flights,
    phase: watch::Receiver<Phase>,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.flights.settle(self);
    }
}

/// The right to fly. Every exit ends the flight: landing tells the passengers; a drop (panic, cancellation) closes the
/// channel, and they are told that it was lost.
pub struct Pilot {
    name: Name,
    flights: Flights,
    phase: watch::Sender<Phase>,
    landed: bool,
}

impl Pilot {
    /// From now on the call waits for its turn.
    pub fn in_line(&self) {
        self.phase.send_replace(Phase::InLine);
    }

    /// It was its turn, or will not be.
    pub fn out_of_line(&self) {
        self.phase.send_replace(Phase::Claiming);
        self.take_seat();
    }

    /// From now on it is known that the key is being worked on.
    pub fn running(&self) {
        self.phase.send_replace(Phase::Running);
        self.take_seat();
    }

    /// Who was overtaken in line is back where nobody has his seat, or only one who stands in line himself.
    fn take_seat(&self) {
        let flight = || Flight { phase: self.phase.subscribe(), is_unsettled: false, landed: None };
        match self.flights.lock().entry(self.name) {
            Entry::Vacant(seat) => drop(seat.insert(flight())),
            Entry::Occupied(mut seat) if seat.get().is_in_line() => drop(seat.insert(flight())),
            Entry::Occupied(_) => {}
        }
    }

    /// Keeps the flight on the map beyond its landing, for as long as the answer is held.
    pub fn hold(&self) -> Unsettled {
        let phase = self.phase.subscribe();
        if let Some(flight) = of_channel(&mut self.flights.lock(), &self.name, &phase) {
            flight.is_unsettled = true;
        }
        Unsettled { name: self.name, flights: self.flights.clone(), phase }
    }

    /// The call is over, and this came of it.
    pub fn land(mut self, conclusion: Conclusion) {
        self.landed = true;
        let conclusion = Arc::new(conclusion);
        self.flights.land(&self, Some(&conclusion));
        self.phase.send_replace(Phase::Landed(conclusion));
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        if !self.landed {
            self.flights.land(self, None);
        }
    }
}

/// Somebody who waits for a flight.
#[derive(Clone)]
pub struct Passenger {
    phase: watch::Receiver<Phase>,
}

/// What a passenger got for waiting.
pub enum Wait {
    Landed(Arc<Conclusion>),
    /// Still running when the patience was over.
    StillRunning,
    /// The pilot is gone without a word.
    Lost,
}

impl Passenger {
    /// Whether the flight still stands in line, so that nothing of the call has begun here.
    pub fn is_in_line(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::InLine)
    }

    /// Waits until the flight has landed, or `until`.
    pub async fn landing(mut self, until: Instant) -> Wait {
        let landed = self.phase.wait_for(|phase| matches!(phase, Phase::Landed(_)));
        match tokio::time::timeout_at(until, landed).await {
            Err(_) => Wait::StillRunning,
            Ok(Err(_)) => Wait::Lost,
            Ok(Ok(phase)) => seen(&phase),
        }
    }

    /// Waits only until it is known whether there is something to wait for.
    pub async fn departure(mut self) -> Wait {
        match self.phase.wait_for(|phase| !matches!(phase, Phase::InLine | Phase::Claiming)).await {
            Err(_) => Wait::Lost,
            Ok(phase) => seen(&phase),
        }
    }

    /// The same, but in line no longer than `until`; `None` where it is still there then.
    pub async fn boarding(mut self, until: Instant) -> Option<Wait> {
        loop {
            let phase = match self.phase.wait_for(|phase| !matches!(phase, Phase::Claiming)).await {
                Err(_) => return Some(Wait::Lost),
                Ok(phase) => phase.clone(),
            };
            if !matches!(phase, Phase::InLine) {
                return Some(seen(&phase));
            }
            let its_turn = self.phase.wait_for(|phase| !matches!(phase, Phase::InLine));
            match tokio::time::timeout_at(until, its_turn).await {
                Err(_) => return None,
                Ok(Err(_)) => return Some(Wait::Lost),
                Ok(Ok(_)) => {}
            }
        }
    }
}

fn seen(phase: &Phase) -> Wait {
    match phase {
        Phase::InLine | Phase::Claiming | Phase::Running => Wait::StillRunning,
        Phase::Landed(conclusion) => Wait::Landed(conclusion.clone()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::operation::fingerprint::Asked;

    #[test]
    fn who_was_overtaken_in_line_is_found_again_when_he_goes() {
        let asked = Asked { method: "POST", target: "/", headers: &HeaderMap::new(), identity: &[], payload: &[7; 32] };
        let (flights, id, fingerprint) =
            (Flights::default(), OperationId::from_bytes([7; 20]), Fingerprint::of(&asked));
        let pilot = || match flights.enter(id, fingerprint) {
            Seat::Pilot(pilot) => pilot,
            Seat::Passenger(_) | Seat::Unsettled(_) => panic!("somebody flies"),
        };
        let is_in_line = || flights.watch(id, fingerprint).map(|passenger| passenger.is_in_line());
        let first = pilot();
        first.in_line();
        flights.overtake(id, fingerprint);
        let second = pilot();
        second.in_line();
        first.out_of_line();
        first.running();
        assert_eq!(is_in_line(), Some(false), "the one who goes outranks those in line");
        drop(second);
        assert_eq!(is_in_line(), Some(false));
        drop(first);
        assert_eq!(is_in_line(), None);
    }
}
