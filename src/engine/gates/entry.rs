//! The way of an attempt through the gates of its upstream, and what comes back of it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, timeout_at};

use super::pausing::{Canary, Pausing, hold_until, shown};
use super::{Gate, Permit, Place, Upstream};
use crate::config;
use crate::credential::{holder_lines, is_cookie};
use crate::engine::Engine;
use crate::engine::status::Refusal;
use crate::operation::outcome::Fact;
use crate::operation::{Cause, Scope};
use crate::retry::decide::{LEAST_TRY, Stop};
use crate::retry::pause::{SOON, Turn, Whom};
use crate::retry::retry_after::Hint;
use crate::retry::{RetryPolicy, budget};

/// How long a canary has before one at another gateway may go.
const CANARY: Duration = Duration::from_secs(3);

/// Who wants to send.
pub(in crate::engine) struct Entrant {
    /// It may find out whether an upstream that failed is well again.
    pub may_probe: bool,
    pub whom: Whom,
    pub scope: Scope,
    pub deadline: Instant,
    /// No longer pause is waited for.
    pub patience: Duration,
    /// Nothing of the call has begun, so it may be turned away.
    pub is_new: bool,
}

/// Why an attempt may not be made, and how long until it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Refused {
    Paused(Whom, Duration),
    BreakerOpen(Option<Cause>, Duration),
    /// No place is free, and none in line for one.
    Full,
    /// The budget does not pay for a retry.
    OverBudget,
}

/// A pause is not over yet.
struct HasToWait;

/// What came of an attempt.
pub(in crate::engine) struct Came<'a> {
    pub fact: &'a Fact,
    pub hint: Option<Hint>,
    pub whom: &'a (dyn Fn() -> Whom + Sync),
    pub policy: &'a RetryPolicy,
}

impl Entrant {
    pub(super) fn has_time_for(&self, wait: Duration) -> bool {
        wait <= self.patience && Instant::now() + wait + LEAST_TRY <= self.deadline
    }
}

impl Refused {
    /// By which a refused call is counted; the budget counts the retries that it does not pay for.
    pub(in crate::engine) fn reason(&self) -> Option<Refusal> {
        match self {
            Self::Paused(..) => Some(Refusal::Pause),
            Self::BreakerOpen(..) => Some(Refusal::Breaker),
            Self::Full => Some(Refusal::Concurrency),
            Self::OverBudget => None,
        }
    }

    /// After what time it is worth asking again.
    pub(in crate::engine) fn wait(&self) -> Duration {
        match self {
            Self::Paused(_, wait) | Self::BreakerOpen(_, wait) => *wait,
            Self::Full => Duration::from_secs(1),
            Self::OverBudget => budget::SPAN,
        }
    }

    /// What stops a run that has begun.
    pub(in crate::engine) fn stop(self, policy: &RetryPolicy) -> Stop {
        match self {
            Self::Paused(_, wait) if wait > policy.retry_after_max => Stop::HintTooLong,
            Self::Paused(..) => Stop::Deadline,
            Self::BreakerOpen(..) => Stop::Breaker,
            Self::Full => Stop::Deadline,
            Self::OverBudget => Stop::Budget,
        }
    }
}

impl Engine {
    /// Leave for an attempt; waits for the end of a pause where that is soon enough, and for a place in line.
    pub(in crate::engine) async fn pass_gates(&self, gate: &Gate, entrant: &Entrant) -> Result<Permit, Refused> {
        loop {
            let canaries = self.wait_for_turns(&gate.upstream.pausing, entrant).await?;
            // Nobody stands in line for what is shut, and nobody takes the breaker's ticket into the line with him.
            gate.look(entrant.may_probe).map_err(|wait| gate.refused(wait))?;
            let (place, canaries) = take_place(gate, entrant, canaries).await?;
            if let Ok(canaries) = self.ask_again(&gate.upstream.pausing, entrant, canaries).await {
                let mut permit = gate.admit(entrant.may_probe).map_err(|wait| gate.refused(wait))?;
                (permit.canaries, permit.place) = (canaries, Some(place));
                return Ok(permit);
            }
        }
    }

    /// A pause may have begun while this call waited for another one, or in line.
    async fn ask_again(
        &self,
        pausing: &Arc<Pausing>,
        entrant: &Entrant,
        mut canaries: Vec<Canary>,
    ) -> Result<Vec<Canary>, HasToWait> {
        for whom in [entrant.whom, Whom::Everybody] {
            if canaries.iter().all(|canary| canary.whom != whom) {
                canaries.extend(self.turn_at_once(pausing, whom).await?);
            }
        }
        Ok(canaries)
    }

    /// The turn of one who has a place in hand, with which nobody waits for a pause. On a ramp a place is turn enough.
    async fn turn_at_once(&self, pausing: &Arc<Pausing>, whom: Whom) -> Result<Option<Canary>, HasToWait> {
        let Some(queue) = pausing.queue(whom).filter(|_| !pausing.is_on_ramp(whom)) else { return Ok(None) };
        let Ok(_first) = queue.turnstile.try_acquire() else { return Err(HasToWait) };
        match pausing.ask(whom, &self.shared.entropy) {
            Turn::Free => Ok(None),
            Turn::Canary(number) => self.be_canary(pausing, whom, number).await.map(Some).ok_or(HasToWait),
            Turn::Wait(_) => Err(HasToWait),
        }
    }

    /// The pause of its own credential first: who has to wait for that one must not be the canary of everybody's.
    async fn wait_for_turns(&self, pausing: &Arc<Pausing>, entrant: &Entrant) -> Result<Vec<Canary>, Refused> {
        let mut canaries = Vec::new();
        if pausing.has_any() {
            for whom in [entrant.whom, Whom::Everybody] {
                let waited = Box::pin(self.wait_for_turn(pausing, whom, entrant)).await;
                canaries.extend(waited.map_err(|wait| Refused::Paused(whom, wait))?);
            }
        }
        Ok(canaries)
    }

    async fn wait_for_turn(
        &self,
        pausing: &Arc<Pausing>,
        whom: Whom,
        entrant: &Entrant,
    ) -> Result<Option<Canary>, Duration> {
        let Some(queue) = pausing.queue(whom) else { return Ok(None) };
        let wait = pausing.wait(whom).unwrap_or(Duration::ZERO);
        let _place = queue.enter(entrant.is_new).filter(|_| entrant.has_time_for(wait)).ok_or(wait)?;
        let Ok(Ok(_first)) = timeout_at(entrant.deadline, queue.turnstile.acquire()).await else {
            return Err(pausing.wait(whom).unwrap_or(SOON));
        };
        loop {
            match pausing.ask(whom, &self.shared.entropy) {
                Turn::Free => return Ok(None),
                Turn::Canary(number) => {
                    if let Some(canary) = self.be_canary(pausing, whom, number).await {
                        return Ok(Some(canary));
                    }
                }
                Turn::Wait(wait) if entrant.has_time_for(wait) => tokio::select! {
                    () = sleep(wait) => {}
                    () = queue.changed.notified() => {}
                },
                Turn::Wait(wait) => return Err(wait),
            }
        }
    }

    /// The canary of this number, unless another gateway has one; then all here wait for that.
    async fn be_canary(&self, pausing: &Arc<Pausing>, whom: Whom, number: u64) -> Option<Canary> {
        let mut canary = Canary { pausing: Arc::clone(pausing), whom, number, lease: None };
        match self.others_canary(&mut canary).await {
            Some(until) => {
                pausing.hold(whom, until, true);
                None
            }
            None => Some(canary),
        }
    }

    /// How long the canary of another gateway has, if there is one. A store that is away leaves each to its own.
    async fn others_canary(&self, canary: &mut Canary) -> Option<Duration> {
        let Canary { pausing, whom, number: _, lease } = canary;
        let now = self.store.now();
        // Of one that never came to an answer.
        *lease = pausing.lease(*whom).filter(|until| *until > now);
        if lease.is_some() {
            return None;
        }
        let until = now.after(CANARY);
        let held = self.store.hold_if_over(&pausing.name(*whom), until).await.ok()?;
        if held.is_none() {
            pausing.leased(*whom, until);
            *lease = Some(until);
        }
        held.map(|held| held.since(now))
    }

    /// Tells the gates what came of an attempt, for all who come behind it.
    pub(in crate::engine) fn report(&self, gate: &Gate, permit: Option<&mut Permit>, came: &Came<'_>) {
        let Some(permit) = permit else { return };
        permit.report(came.fact, came.policy, &self.shared.entropy);
        let canaries = std::mem::take(&mut permit.canaries);
        if asks_for_less(came.fact, came.hint) {
            let whom = (came.whom)();
            if let Some((wait, is_news)) = gate.upstream.pausing.throttled(whom, came.hint.map(|Hint(wait)| wait)) {
                if is_news {
                    warn_of_pause(&gate.upstream, whom, wait);
                }
                self.share_pause(&gate.upstream, whom, wait);
            }
            return;
        }
        // The drop of one that was not answered lets the next call find out.
        if is_answered(came.fact) {
            canaries.into_iter().for_each(|canary| self.end_pause(canary));
        }
    }

    fn share_pause(&self, upstream: &Upstream, whom: Whom, wait: Duration) {
        let (pausing, store) = (Arc::clone(&upstream.pausing), Arc::clone(&self.store));
        self.shared.tasks.spawn(async move {
            let (name, lease) = (pausing.name(whom), pausing.take_lease(whom));
            match hold_until(&*store, &name, lease, store.now().after(wait)).await {
                Ok(()) => pausing.stored(whom),
                Err(error) => tracing::warn!(pause = name, %error, "other gateways do not know of it"),
            }
        });
    }

    /// The other gateways hear of it before the rest of our own follows. What somebody has set since the canary went is
    /// none of its business.
    fn end_pause(&self, canary: Canary) {
        let store = Arc::clone(&self.store);
        self.shared.tasks.spawn(async move {
            let name = canary.pausing.name(canary.whom);
            if let Some(lease) = canary.lease
                && let Err(error) = store.replace_hold(&name, lease, None).await
            {
                tracing::debug!(pause = name, %error, "other gateways find out by themselves");
            }
            canary.pausing.passed(&canary);
        });
    }

    /// Hears from the store of pauses that other gateways or operators set or ended, and forgets those of long ago.
    ///
    /// # Errors
    /// The store did not answer; what is known here stays.
    pub async fn look_at_pauses(&self) -> Result<(), crate::store::StoreError> {
        let gates = self.shared.gates.all();
        gates.iter().for_each(|pausing| pausing.forget());
        let asked: Vec<_> = gates.into_iter().map(|pausing| (pausing.now(), pausing)).collect();
        let held = self.store.held().await?;
        asked.iter().for_each(|(asked, pausing)| pausing.compare(&held, self.store.as_ref(), *asked));
        Ok(())
    }
}

/// A place, perhaps after a wait in line. A canary in line would hold back all who wait for its pause: it leaves that to the
/// next one.
async fn take_place(gate: &Gate, entrant: &Entrant, canaries: Vec<Canary>) -> Result<(Place, Vec<Canary>), Refused> {
    if let Some(place) = gate.places.take_at_once() {
        return Ok((place, canaries));
    }
    drop(canaries);
    let until = entrant.deadline.checked_sub(LEAST_TRY).unwrap_or(entrant.deadline);
    let place = gate.places.take(&entrant.scope, entrant.is_new, until).await.ok_or(Refused::Full)?;
    Ok((place, Vec::new()))
}

fn warn_of_pause(upstream: &Upstream, whom: Whom, wait: Duration) {
    tracing::warn!(
        upstream = upstream.name,
        credential = shown(whom),
        wait_ms = crate::clock::millis(wait),
        "paused: the upstream asks for less, and calls with this credential wait or get 429"
    );
}

/// Whether the upstream, or what stands before it, said anything at all.
fn is_answered(fact: &Fact) -> bool {
    match fact {
        Fact::NotSent { .. } | Fact::TurnedAway | Fact::Silent(_) => false,
        Fact::Garbled | Fact::Cut { .. } | Fact::Throttled | Fact::Refused { .. } | Fact::Misdirected => true,
        Fact::Unreached { .. } | Fact::Overloaded { .. } | Fact::ServerFailed { .. } => true,
        Fact::GatewayFailed { .. } | Fact::Denied { .. } | Fact::Final { .. } | Fact::Ruled { .. } => true,
    }
}

/// 429, and what a rule calls a throttle, by itself; 503 and 529 where they say for how long.
fn asks_for_less(fact: &Fact, hint: Option<Hint>) -> bool {
    let is_stated = hint.is_some_and(|Hint(wait)| !wait.is_zero());
    let may_be_told_by_its_hint = matches!(fact, Fact::Overloaded { status: 503 | 529 });
    if may_be_told_by_its_hint { is_stated } else { fact.is_throttle() }
}

/// By what the upstream knows whoever calls, as a digest: the credential of the gateway's own, where it has one, whatever
/// else the call brings; else what tells the caller from others. A cookie does not: it may be another one each time.
pub(in crate::engine) fn whom<'a>(
    upstream: &'a config::Upstream,
    theirs: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
) -> Whom {
    let ours = upstream.headers.iter().filter(|(_, value)| value.is_sensitive());
    let mut lines: Vec<_> = ours.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    if lines.is_empty() {
        lines = holder_lines(theirs.filter(|(name, _)| !is_cookie(name.as_str())), false);
    }
    lines.sort_unstable();
    let mut hasher = Sha256::new_with_prefix(&upstream.authority);
    for (name, value) in lines {
        for part in [name.as_bytes(), value] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
    }
    let digest: [u8; 32] = hasher.finalize().into();
    Whom::Holder(digest.first_chunk().copied().unwrap_or_default())
}
