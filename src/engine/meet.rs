//! A record that already exists: followed, taken over, claimed anew, ended, or told as it is.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::InFlight;
use crate::crash_point::{self, Point};
use crate::engine::Engine;
use crate::engine::call::NamedCall;
use crate::engine::claim::MAX_ROUNDS;
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::{Pilot, Wait};
use crate::engine::owner::Owner;
use crate::engine::refusal;
use crate::engine::unreadable::KeptRequest;
use crate::operation::admission::{Admission, ResendRule};
use crate::operation::dead_letter::Next;
use crate::operation::transition::{Opening, RequestChange};
use crate::operation::{Identity, KeySource, Operation, OperationId, Receipt, State, StateName, StoredRequest};
use crate::store::{Found, StoreError, Written};

const POLL_FIRST: Duration = Duration::from_millis(40);
const POLL_MAX: Duration = Duration::from_secs(1);

/// What a look at an existing record led to.
pub(super) enum Met {
    Owned(Box<Owner>, StoredRequest),
    Concluded(Box<Conclusion>),
    /// It is another record now.
    Changed(Box<Found>),
    /// It went away: claim the key anew.
    Gone,
}

/// What an identical unnamed call means for this one.
pub(super) enum Alike {
    SameOperation,
    Stops(Box<Conclusion>),
    Another(OperationId),
}

impl Engine {
    /// The row of the claim table that the record is in, until it leads to an owner or an answer.
    ///
    /// # Errors
    /// The store took no further step; what the caller is told of the record that was read.
    pub(super) async fn meet(
        self: &Arc<Self>,
        pilot: &Pilot,
        named: &NamedCall,
        mut found: Found,
    ) -> Result<Met, Box<Conclusion>> {
        for _ in 0..MAX_ROUNDS {
            match self.move_on(pilot, named, &found).await {
                Ok(Met::Changed(other)) => found = *other,
                Ok(done) => return Ok(done),
                Err(error) => {
                    self.note_store_failure(named, &error);
                    return Err(Box::new(refusal::met_without_store(&found.operation, self.store.now(), &error)));
                }
            }
        }
        Ok(self.still_running(&found.operation))
    }

    async fn move_on(self: &Arc<Self>, pilot: &Pilot, named: &NamedCall, found: &Found) -> Result<Met, StoreError> {
        let rule = named.resend_rule();
        match found.operation.admit(Some(&named.identity.fingerprint), &rule, self.store.now()) {
            Admission::InProgress => self.follow(pilot, named, found).await,
            Admission::TakeOver if self.is_due_too_late(named, found) => Ok(self.still_running(&found.operation)),
            admission @ (Admission::TakeOver | Admission::ClaimAgain) => self.enter(named, found, admission).await,
            Admission::Lapse => self.end_lapsed(named, found).await,
            Admission::KeyReused => Ok(Met::Concluded(Box::new(refusal::other_request(named)))),
            row => Ok(self.told(found, row).await),
        }
    }

    async fn told(&self, found: &Found, row: Admission) -> Met {
        if row == Admission::InProgress {
            return self.still_running(&found.operation);
        }
        self.note_lost_receipt(found).await;
        Met::Concluded(Box::new(self.of_record(found, row)))
    }

    /// What the record says. A receipt that was read takes room until the last who gets it has it.
    pub(super) fn of_record(&self, found: &Found, row: Admission) -> Conclusion {
        let (receipt, marks) = match refusal::of_record(found, row) {
            Conclusion::Receipt { receipt, marks } => (receipt, marks),
            other => return other,
        };
        let mut room = self.shared.buffers.for_answer();
        if !room.grow(receipt.body.len() as u64) {
            return Conclusion::Problem { problem: refusal::no_room(), marks };
        }
        Conclusion::Receipt { receipt: Receipt { body: room.around(receipt.body), ..receipt }, marks }
    }

    /// Whoever takes over a wait keeps to it, so it is not for a caller who is gone before it ends.
    fn is_due_too_late(&self, named: &NamedCall, found: &Found) -> bool {
        let State::Waiting { not_before, .. } = found.operation.state else { return false };
        Instant::now() + not_before.since(self.store.now()) >= named.call.deadline
    }

    /// Becomes the owner of a record that stands still. What is sent are the bytes of its first call; only where
    /// nothing can have run may the present caller's stand in for bytes that were not kept.
    async fn enter(
        self: &Arc<Self>,
        named: &NamedCall,
        found: &Found,
        admission: Admission,
    ) -> Result<Met, StoreError> {
        let operation = &found.operation;
        let kept = self.kept_request(operation.id).await?;
        let is_strange = matches!(kept, KeptRequest::Strange);
        let mut kept = kept.here();
        if kept.is_none() && (operation.may_have_run || operation.state.name() == StateName::Sent) {
            return match admission {
                Admission::TakeOver if is_strange && self.is_left_to_others(operation) => {
                    Ok(Met::Concluded(Box::new(refusal::left_to_others(operation))))
                }
                Admission::TakeOver => self.end_lapsed(named, found).await,
                _ => Ok(Met::Concluded(Box::new(refusal::of_record(found, Admission::Unknown)))),
            };
        }
        let since = Instant::now();
        let ownership = self.ownership_for(named);
        let change = match admission {
            Admission::TakeOver => operation.take_over(ownership, self.step()),
            _ => operation.claim_again(ownership, Opening::of(named.repeat()), self.step()),
        };
        let mut change = match change {
            Ok(change) => change,
            Err(error) => return Ok(Met::Concluded(Box::new(refusal::internal(named, &error)))),
        };
        if kept.is_none() && named.call.route.payload.store_request {
            change.request = RequestChange::Put(named.stored());
        }
        if let Some(request) = kept.as_mut().filter(|request| request.had_credential && named.leaves_credential()) {
            Arc::make_mut(&mut request.headers).extend(named.credentials.iter().cloned());
            request.had_credential = false;
            change.request = RequestChange::Put(request.clone());
        }
        adopt(&mut change.operation, &named.identity);
        crash_point::reached(Point::BeforeTakeOver);
        match self.store.write(&change).await {
            Ok(Written::Applied) => {
                crash_point::reached(Point::AfterTakeOver);
                let owner = self.owner(change.operation, since);
                Ok(Met::Owned(Box::new(owner), kept.unwrap_or_else(|| named.stored())))
            }
            Ok(Written::Refused(other)) => Ok(Met::Changed(other)),
            Ok(Written::Gone) => Ok(Met::Gone),
            Err(error) => {
                // One that nobody waits for goes on by itself when the lease is over.
                if admission != Admission::TakeOver || !operation.accepted {
                    self.withdraw((named.retention(), Next::Client), change, &error);
                }
                Err(error)
            }
        }
    }

    /// Ends a record whose owner is gone and that nobody may go on with.
    async fn end_lapsed(&self, named: &NamedCall, found: &Found) -> Result<Met, StoreError> {
        let change = match found.operation.lapse(named.retention(), self.step()) {
            Ok(change) => change,
            Err(error) => return Ok(Met::Concluded(Box::new(refusal::internal(named, &error)))),
        };
        crash_point::reached(Point::BeforeLapse);
        Ok(match self.store.write(&change).await? {
            Written::Applied => {
                crash_point::reached(Point::AfterLapse);
                self.count_lapse(&change.operation);
                Met::Changed(Box::new(Found::new(change.operation, None)))
            }
            Written::Refused(other) => Met::Changed(other),
            Written::Gone => Met::Gone,
        })
    }

    /// Somebody owns the record. In this process that is a flight to join; elsewhere its record has to be looked at
    /// again and again.
    async fn follow(&self, pilot: &Pilot, named: &NamedCall, found: &Found) -> Result<Met, StoreError> {
        let id = found.operation.id;
        let route = &named.call.route;
        pilot.running();
        if route.in_flight == InFlight::Reject || found.operation.parked_until().is_some() {
            return Ok(self.still_running(&found.operation));
        }
        let until = (Instant::now() + route.in_flight_wait).min(named.call.deadline);
        if id != named.id
            && let Some(passenger) = self.shared.flights.watch(id, found.operation.identity.fingerprint)
            && !passenger.is_in_line()
        {
            return Ok(Met::Concluded(Box::new(match passenger.landing(until).await {
                Wait::Landed(end) => Conclusion::clone(&end),
                Wait::StillRunning | Wait::Lost => refusal::in_progress(id, &found.operation.identity),
            })));
        }
        let mut pause = POLL_FIRST;
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            pause = self.jittered(pause.saturating_mul(2).min(POLL_MAX));
            match self.store.read(id).await? {
                None => return Ok(Met::Gone),
                Some(now) if now.operation.is_ownerless(self.store.now()) => return Ok(self.joined(now).await),
                Some(_) => {}
            }
        }
        Ok(self.still_running(&found.operation))
    }

    /// Whoever has waited for a run goes on with it if its owner was lost, and is told its end if it has ended: another
    /// run is for those who ask after it.
    async fn joined(&self, found: Found) -> Met {
        match found.operation.admit(None, &ResendRule::NONE, self.store.now()) {
            Admission::TakeOver | Admission::Lapse => Met::Changed(Box::new(found)),
            row => self.told(&found, row).await,
        }
    }

    /// Of the operation that is there: an unnamed call may have met another one than its own.
    fn still_running(&self, operation: &Operation) -> Met {
        Met::Concluded(Box::new(refusal::waiting(operation, self.store.now())))
    }

    /// A call without a key of its own meets one of the same content.
    pub(super) fn look_alike(&self, named: &NamedCall, found: &Found) -> Alike {
        let operation = &found.operation;
        if operation.stops_alike(self.store.now()) {
            return Alike::Stops(Box::new(refusal::unresolved_alike(named, found, self.store.now())));
        }
        let window = operation.identity.alike.and_then(|alike| alike.until);
        match window {
            Some(until) if until > self.store.now() => Alike::SameOperation,
            _ => Alike::Another(operation.id),
        }
    }
}

/// Whoever sends a stamped key as his own meets the call again, so it is kept as one that has a name.
fn adopt(operation: &mut Operation, asked: &Identity) {
    let was_unnamed = matches!(operation.identity.source, KeySource::Stamped | KeySource::Window);
    if was_unnamed && asked.source == KeySource::Client {
        Arc::make_mut(&mut operation.identity).source = KeySource::Client;
    }
}
