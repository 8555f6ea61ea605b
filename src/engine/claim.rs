//! From a key to its owner or its answer: the claim table, acted out.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::InFlight;
use crate::crash_point::{self, Point};
use crate::engine::Engine;
use crate::engine::answer::Answer;
use crate::engine::call::{Call, NamedCall};
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::{Passenger, Pilot, Seat, Wait};
use crate::engine::gates::Permit;
use crate::engine::meet::{Alike, Met};
use crate::engine::owner::{Owner, WriteError};
use crate::engine::refusal;
use crate::engine::run::Dispatch;
use crate::engine::settle::{FIRST_PAUSE, LONGEST_PAUSE, LastWord, Word};
use crate::operation::admission::{Admission, ResendRule};
use crate::operation::dead_letter::Next;
use crate::operation::transition::{Change, Ended, Opening, Ownership, RequestChange, Retention, claim};
use crate::operation::{Cause, Fence, Operation, OperationId, StoredRequest, WriteId};
use crate::store::{Claimed, StoreError};

/// How often a pilot may find the record changed under his hands before he calls it in progress.
pub(super) const MAX_ROUNDS: usize = 32;

/// The caller who waits for the pilot; gets the answer of the run itself, everybody else a replay.
pub struct FirstCaller(Option<oneshot::Sender<Answer>>);

impl FirstCaller {
    /// A run that nobody waits for.
    pub fn nobody() -> Self {
        Self(None)
    }

    /// Who sees to a call that did not run: somebody who was told when to come back has to be there to hear it.
    pub fn next(&self, told_to_come_back: bool) -> Next {
        let listens = self.0.as_ref().is_some_and(|sender| !sender.is_closed());
        if told_to_come_back && listens { Next::Client } else { Next::Person }
    }

    /// Hands the answer over, if he has none yet. A caller who has hung up takes nothing from the call.
    pub fn answer(&mut self, answer: impl FnOnce() -> Answer) {
        if let Some(sender) = self.0.take() {
            drop(sender.send(answer()));
        }
    }
}

impl Engine {
    /// A guarded call from its key to its answer. Of several with the same request one goes, in the lines before the gates
    /// as well; in these nobody stands longer than `until`.
    pub(super) async fn fly(self: &Arc<Self>, named: NamedCall, until: Instant) -> Answer {
        let mut patience = None;
        loop {
            let passenger = match self.shared.flights.enter(named.id, named.identity.fingerprint) {
                Seat::Pilot(pilot) => return self.depart(pilot, named, until).await,
                Seat::Unsettled(end) => return self.stored_receipt(&named).await.unwrap_or(end).answer(),
                Seat::Passenger(passenger) => passenger,
            };
            if passenger.is_in_line() && matches!(self.before_send(&named).await, Ok(None)) {
                // A record answers first, and nobody who stands in line has to be waited for.
                self.shared.flights.overtake(named.id, named.identity.fingerprint);
                continue;
            }
            let so_far = match wait_aboard(passenger, &named.call, until, &mut patience).await {
                None => refusal::in_line(&named),
                Some(Wait::StillRunning) => refusal::in_progress(named.id, &named.identity),
                Some(Wait::Landed(end)) if !end.is_in_progress() || patience <= Some(Instant::now()) => {
                    return end.answer();
                }
                Some(Wait::Landed(_) | Wait::Lost) => continue,
            };
            return self.still_flying(&named, so_far).await.answer();
        }
    }

    /// Through the gates, and off. Who is turned away there, or leaves the line, is lost to his passengers: each of them may
    /// have more time than he had.
    async fn depart(self: &Arc<Self>, pilot: Pilot, named: NamedCall, until: Instant) -> Answer {
        // Nothing is on record yet, and nobody sends for one who has left the line.
        named.call.presence.ends_with_caller(true);
        let admitted = self.admit(&pilot, &named, until).await;
        named.call.presence.ends_with_caller(false);
        match admitted {
            Ok(permit) => self.take_off(pilot, named, permit).await,
            Err(refused) => {
                let answer = refused.answer();
                if answer.is_for_want_of_store() {
                    // His passengers would ask the same store, one after the other.
                    pilot.land(*refused);
                }
                answer
            }
        }
    }

    /// A flight knows what its own gateway knows. While that had lost the store, or the lease, another one may have ended
    /// the operation.
    async fn still_flying(&self, named: &NamedCall, so_far: Conclusion) -> Arc<Conclusion> {
        match self.recorded(named).await {
            Ok(end) => end.unwrap_or_else(|| so_far.into()),
            Err(error) => refusal::in_flight_without_store(named, &error).into(),
        }
    }

    /// Another receipt than the one that our own gateway has, and that counts.
    async fn stored_receipt(&self, named: &NamedCall) -> Option<Arc<Conclusion>> {
        let end = self.recorded(named).await.ok()?;
        end.filter(|end| matches!(**end, Conclusion::Receipt { .. }))
    }

    /// What the record says of an operation that has ended.
    async fn recorded(&self, named: &NamedCall) -> Result<Option<Arc<Conclusion>>, StoreError> {
        let Some(found) = self.store.read(named.id).await? else { return Ok(None) };
        let row = found.operation.admit(Some(&named.identity.fingerprint), &ResendRule::NONE, self.store.now());
        Ok(match row {
            Admission::InProgress | Admission::TakeOver | Admission::Lapse | Admission::ClaimAgain => None,
            Admission::KeyReused => Some(refusal::other_request(named).into()),
            row => Some(self.of_record(&found, row).into()),
        })
    }

    /// The work is a task of its own: a caller who hangs up drops nothing.
    async fn take_off(self: &Arc<Self>, pilot: Pilot, named: NamedCall, permit: Option<Permit>) -> Answer {
        let (sender, receiver) = oneshot::channel();
        let (id, identity) = (named.id, Arc::clone(&named.identity));
        let engine = Arc::clone(self);
        // In a box, for a task is moved six times before it is polled, and three times when it ends.
        self.shared.tasks.spawn(Box::pin(async move {
            let mut caller = FirstCaller(Some(sender));
            let conclusion = engine.claim(&pilot, named, permit, &mut caller).await;
            caller.answer(|| conclusion.answer());
            pilot.land(conclusion);
        }));
        receiver.await.unwrap_or_else(|_| refusal::owner_lost(id, &identity).answer())
    }

    /// One atomic store step, then whatever the record says.
    async fn claim(
        self: &Arc<Self>,
        pilot: &Pilot,
        named: NamedCall,
        mut permit: Option<Permit>,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let mut place = match self.place(&named).await {
            Ok(place) => place,
            Err(refused) => return *refused,
        };
        let mut past = None;
        for _ in 0..MAX_ROUNDS {
            let since = Instant::now();
            let change = match self.first_record(&named) {
                Ok(change) => change,
                Err(conclusion) => return *conclusion,
            };
            crash_point::reached(Point::BeforeClaim);
            let met = match self.store.claim(&change, past).await {
                Ok(Claimed::Won) => Ok(self.won(&named, change, since)),
                Ok(Claimed::Exists(found)) => {
                    unless_open(&found.operation, &mut place, &mut permit);
                    Box::pin(self.meet(pilot, &named, *found)).await
                }
                Ok(Claimed::Alike(found)) => match self.look_alike(&named, &found) {
                    Alike::SameOperation => {
                        unless_open(&found.operation, &mut place, &mut permit);
                        Box::pin(self.meet(pilot, &named, *found)).await
                    }
                    Alike::Stops(conclusion) => return *conclusion,
                    Alike::Another(id) => {
                        past = Some(id);
                        continue;
                    }
                },
                Err(error) => {
                    self.withdraw((named.retention(), Next::Client), change, &error);
                    self.note_store_failure(&named, &error);
                    Err(Box::new(refusal::store_unavailable(&named, &error)))
                }
            };
            if matches!(met, Ok(Met::Owned(..)) | Err(_))
                && let Some(place) = place.take()
            {
                place.taken();
            }
            match met {
                Ok(Met::Owned(owner, request)) => {
                    pilot.running();
                    let dispatch = self.dispatch(&named, request, permit);
                    // Its future is large, and a replay has no use for it.
                    let conclusion = Box::pin(self.run(pilot, *owner, dispatch, caller)).await;
                    caller.answer(|| conclusion.first_answer());
                    return conclusion;
                }
                Ok(Met::Concluded(conclusion)) | Err(conclusion) => return *conclusion,
                Ok(Met::Changed(_) | Met::Gone) => {}
            }
        }
        refusal::in_progress(named.id, &named.identity)
    }

    pub(super) fn ownership_for(&self, named: &NamedCall) -> Ownership {
        self.ownership(&named.call.route, named.call.deadline, named.call.respond_async.is_some())
    }

    pub(super) fn note_store_failure(&self, named: &NamedCall, error: &StoreError) {
        self.note_unreadable(named.id, error);
        tracing::warn!(operation = %named.id, route = %named.call.route.name, %error, "claim failed");
    }

    fn dispatch(&self, named: &NamedCall, request: StoredRequest, permit: Option<Permit>) -> Dispatch {
        let NamedCall { call, credentials, .. } = named;
        Dispatch {
            route: Arc::clone(&call.route),
            request,
            credentials: credentials.clone(),
            deadline: call.deadline,
            earlier: self.look_for_earlier(named),
            permit,
        }
    }

    /// Where another payload for the same session and step is another operation, the answer names the one before.
    /// Nothing is decided on it, so the store is asked beside the run.
    fn look_for_earlier(&self, named: &NamedCall) -> Option<JoinHandle<Option<OperationId>>> {
        let note = named.step_note()?;
        let (store, own) = (Arc::clone(&self.store), named.id);
        let until = store.now().after(named.call.route.tombstones);
        Some(self.shared.tasks.spawn(async move {
            let before = store.remember(&note, &own.to_string(), Some(until)).await.ok()??;
            before.parse().ok().filter(|id| *id != own)
        }))
    }

    /// The request goes from the change to the run; where it is not stored the run makes it anew.
    fn won(&self, named: &NamedCall, change: Change, since: Instant) -> Met {
        let request = match change.request {
            RequestChange::Put(request) => request,
            RequestChange::Keep | RequestChange::Drop => named.stored(),
        };
        crash_point::reached(Point::AfterClaim);
        Met::Owned(Box::new(self.owner(change.operation, since)), request)
    }

    fn first_record(&self, named: &NamedCall) -> Result<Change, Box<Conclusion>> {
        let ownership = self.ownership_for(named);
        let (identity, request, opening) = (Arc::clone(&named.identity), named.stored(), Opening::of(named.repeat()));
        let change = claim(named.id, identity, request, ownership, opening, self.step());
        let mut change = change.map_err(|error| Box::new(refusal::internal(named, &error)))?;
        if !named.call.route.payload.store_request {
            change.request = RequestChange::Keep;
        }
        Ok(change)
    }

    /// A claim whose fate is unknown must not leave a record that somebody would send later: nothing was sent, and
    /// that is what its owner says as soon as the store hears him. The claim itself may still be on its way, so a store
    /// that has not seen it is asked again for the length of a lease.
    pub(super) fn withdraw(self: &Arc<Self>, (keep, next): (Retention, Next), change: Change, error: &StoreError) {
        if !matches!(error, StoreError::Timeout | StoreError::Connection(_) | StoreError::Unreplicated(_)) {
            return;
        }
        let Ok(place) = Arc::clone(&self.shared.withdrawals).try_acquire_owned() else {
            return tracing::warn!(operation = %change.operation.id, "too many claims to take back; its lease will end");
        };
        let owner = self.owner(change.operation, Instant::now());
        let ended = Ended { cause: Cause::Store, may_have_run: false };
        let write = WriteId(self.shared.entropy.bytes());
        let word = LastWord { word: Word::End(ended, next), keep, write };
        let taking_back = take_back(owner, change.expected, word);
        self.shared.tasks.spawn(async move {
            taking_back.await;
            drop(place);
        });
    }
}

/// What is unfinished is counted already, and may be waited for: that takes neither.
fn unless_open<P, L>(found: &Operation, place: &mut Option<P>, permit: &mut Option<L>) {
    place.take_if(|_| found.is_open());
    permit.take_if(|_| found.is_open());
}

/// `before` is what the store holds for as long as the claim has not arrived.
async fn take_back(mut owner: Owner, before: Option<Fence>, word: LastWord) {
    let since = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        crash_point::reached(Point::BeforeWithdrawal);
        let is_late = match word.write(&mut owner).await {
            Ok(()) => return crash_point::reached(Point::AfterWithdrawal),
            Err(WriteError::Illegal(_)) => return,
            Err(WriteError::Store(error)) => error.may_pass(),
            Err(WriteError::Gone) => since.elapsed() < owner.lease(),
            Err(WriteError::Fenced(found)) => Some(found.operation.fence) == before && since.elapsed() < owner.lease(),
        };
        if !is_late {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whoever waits for a call that stands in line stands there with it; for one that is being made he waits as the route says,
/// which is `patience` from the first time on. `None`: it is still in line at `until`.
async fn wait_aboard(
    passenger: Passenger,
    call: &Call,
    until: Instant,
    patience: &mut Option<Instant>,
) -> Option<Wait> {
    call.presence.ends_with_caller(true);
    let boarded = passenger.clone().boarding(until).await;
    call.presence.ends_with_caller(false);
    let boarded = boarded?;
    let patience = *patience.get_or_insert_with(|| (Instant::now() + call.route.in_flight_wait).min(call.deadline));
    Some(match (boarded, call.route.in_flight) {
        (Wait::StillRunning, InFlight::Wait) => passenger.landing(patience).await,
        (told, _) => told,
    })
}
