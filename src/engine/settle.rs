//! The end of a run: durable first, then told.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::Timestamp;
use crate::config::Route;
use crate::crash_point::{self, Point};
use crate::engine::Engine;
use crate::engine::answer::{Answer, Body, Content, Execution, Marks};
use crate::engine::attempt::{Attempted, Head, UpstreamAnswer};
use crate::engine::call::retention;
use crate::engine::claim::FirstCaller;
use crate::engine::conclusion::Conclusion;
use crate::engine::flight::{Pilot, Unsettled};
use crate::engine::owner::{Owner, WriteError};
use crate::engine::problem::{Code, Problem};
use crate::engine::refusal;
use crate::engine::report::Told;
use crate::engine::run::Run;
use crate::operation::admission::{Repeat, ResendRule};
use crate::operation::dead_letter::Next;
use crate::operation::outcome::Outcome;
use crate::operation::transition::{Ended, Retention, Step, Verdict};
use crate::operation::{Cause, Kept, Operation, Receipt, Settled, WriteId};
use crate::retry::decide::{Ending, Stop};
use crate::store::{Found, StoreError};

/// Between two tries of a step that the store did not take.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For a receipt whose answer came at the deadline, or was told live beyond it.
const GRACE: Duration = Duration::from_secs(2);

/// Whether a last word is in the store.
pub(super) enum Durable {
    Yes,
    /// The record says something else, and that counts.
    Superseded(Box<Found>),
    /// The store would not take it before the deadline.
    NotYet,
}

/// The last write of a run.
pub(super) struct LastWord {
    pub word: Word,
    pub keep: Retention,
    /// The same on every try, so that one that was taken without our hearing of it is known again.
    pub write: WriteId,
}

pub(super) enum Word {
    Settle {
        verdict: Verdict,
        settled: Settled,
        receipt: Option<Receipt>,
    },
    End(Ended, Next),
    /// The run is over until then.
    Park(Ended, Timestamp),
}

impl LastWord {
    pub(super) async fn write(&self, owner: &mut Owner) -> Result<(), WriteError> {
        match &self.word {
            Word::Settle { verdict, settled, receipt } => {
                let settle = |operation: &Operation, step| {
                    let step = Step { write: self.write, ..step };
                    operation.settle(*verdict, settled.clone(), receipt.clone(), self.keep, step)
                };
                owner.write_answer(settled.status, settle).await
            }
            Word::End(ended, next) => owner.write_end(*ended, *next, self.keep, self.write).await,
            Word::Park(ended, not_before) => {
                let park = |operation: &Operation, step| {
                    operation.park(*ended, *not_before, Step { write: self.write, ..step })
                };
                match owner.write(park).await {
                    // Its lease was over by then, and he alone knows what his attempt came to.
                    Err(WriteError::Fenced(_)) => owner.write_end(*ended, Next::Person, self.keep, self.write).await,
                    parked => parked,
                }
            }
        }
    }

    /// Tries until the store has taken it, for as long as the process lives: nobody else knows what this word says.
    /// Meanwhile whoever repeats the call here is told what came of it, and no sweep of ours ends it in another way.
    async fn keep_writing(self, mut owner: Owner, _held: Unsettled) {
        let mut pause = FIRST_PAUSE;
        while let Err(WriteError::Store(error)) = self.write(&mut owner).await {
            if !error.may_pass() {
                return tracing::error!(operation = %owner.operation.id, %error, "the end of the run cannot be kept");
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Engine {
    /// The stored request does not make a request of the route any more.
    pub(super) async fn end_unsendable(&self, pilot: &Pilot, mut owner: Owner, route: &Route) -> Conclusion {
        let ended = Ended { cause: Cause::Unsendable, may_have_run: false };
        let keep = retention(route, Repeat::Unsafe, &owner.operation.identity, owner.operation.accepted);
        let word = LastWord { word: Word::End(ended, Next::Person), keep, write: WriteId(self.shared.entropy.bytes()) };
        let conclusion = refusal::unsendable(&owner.operation);
        let doubtful = owner.operation.may_have_run;
        match word.write(&mut owner).await {
            Ok(()) => {}
            Err(WriteError::Fenced(found)) => return superseded(&owner, &found),
            Err(error) => {
                tracing::warn!(operation = %owner.operation.id, %error, "not ended yet");
                self.shared.tasks.spawn(word.keep_writing(owner, pilot.hold()));
            }
        }
        if doubtful {
            self.count_unknown(&route.name);
        }
        conclusion
    }
}

impl Run<'_> {
    /// Ends the run as decided, and tells the first caller what came of it.
    ///
    /// What is rare goes into a box, here and below: the future of every run carries that of its longest path, and is
    /// copied when it begins.
    pub(super) async fn end(
        &mut self,
        attempted: Attempted,
        ending: Ending,
        stop: Option<Stop>,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        match (ending.verdict(), attempted.answer) {
            (Some(verdict), Some(UpstreamAnswer { head, body })) => {
                let after_doubt = matches!(ending, Ending::Failed { after_doubt: true });
                match body.whole() {
                    Ok(body) => self.settle((verdict, after_doubt), head, body, caller).await,
                    Err(unfinished) => {
                        self.find_earlier().await;
                        Box::pin(self.settle_live((verdict, after_doubt), head, *unfinished, caller)).await
                    }
                }
            }
            (Some(verdict), None) => Box::pin(self.settle_cut(verdict, attempted.outcome, &attempted.part)).await,
            (None, answer) => {
                let ended = ending.ended().unwrap_or(Ended { cause: Cause::BadAnswer, may_have_run: true });
                let told = Attempted { answer, ..attempted }.told(stop);
                Box::pin(self.end_without_receipt(ended, told, caller)).await
            }
        }
    }

    async fn settle(
        &mut self,
        (verdict, after_doubt): (Verdict, bool),
        Head { status, headers }: Head,
        body: Bytes,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let digest = Sha256::digest(&body).into();
        let settled = Settled { after_doubt, ..self.settled(status, body.len() as u64, digest, Kept::Whole) };
        let body = self.room.take().around(body);
        let receipt = self.receipt_of(status, &headers, &body);
        let word = self.word(Word::Settle { verdict, settled, receipt: Some(receipt.clone()) });
        let durable = self.make_durable(&word).await;
        self.find_earlier().await;
        let marks = Marks { prior_outcome_unknown: after_doubt, ..self.marks(Execution::Executed, None) };
        match durable {
            Durable::Yes => {
                let content = Content::Upstream { status, headers, body: Body::Whole(body) };
                caller.answer(|| Answer { content, marks: marks.clone() });
                Conclusion::Receipt { receipt, marks }
            }
            Durable::Superseded(found) => self.superseded(&found),
            Durable::NotYet => {
                self.keep_writing(word);
                let marks = Marks { receipt_none: true, ..marks };
                Conclusion::Answer { status, headers, body, marks }
            }
        }
    }

    /// The head said that it ran, and the body never came whole.
    async fn settle_cut(&mut self, verdict: Verdict, outcome: Outcome, part: &[u8]) -> Conclusion {
        let status = match outcome {
            Outcome::Cut { status } | Outcome::Answer { status } => status,
            Outcome::NotSent { .. } | Outcome::TurnedAway | Outcome::Silent(_) | Outcome::BadHead => {
                StatusCode::BAD_GATEWAY.as_u16()
            }
        };
        let digest = Sha256::digest(part).into();
        let settled = Settled { status, ..self.settled(StatusCode::OK, part.len() as u64, digest, Kept::Cut) };
        let word = self.word(Word::Settle { verdict, settled, receipt: None });
        let durable = self.make_durable(&word).await;
        self.find_earlier().await;
        let marks = self.marks(Execution::Executed, Some(Stop::Unsafe));
        match durable {
            Durable::Yes => {
                let problem = refusal::unavailable(&self.owner.operation).with_status(StatusCode::BAD_GATEWAY.as_u16());
                Conclusion::Problem { problem, marks }
            }
            Durable::Superseded(found) => self.superseded(&found),
            Durable::NotYet => {
                self.keep_writing(word);
                let detail = "The call ran, but its answer was cut and the store could not keep what is known of it.";
                let problem =
                    Problem::new(Code::ResultUnavailable, detail).with_status(StatusCode::BAD_GATEWAY.as_u16());
                Conclusion::Problem { problem, marks: Marks { receipt_none: true, ..marks } }
            }
        }
    }

    /// No receipt: what the upstream said last goes to the caller, or else a problem that says what is known.
    pub(super) async fn end_without_receipt(
        &mut self,
        ended: Ended,
        told: Told,
        caller: &mut FirstCaller,
    ) -> Conclusion {
        let doubtful = ended.may_have_run || self.owner.operation.may_have_run;
        let execution = if doubtful { Execution::Unknown } else { Execution::NotExecuted };
        let marks = self.marks(execution, told.stop);
        let word = self.word(Word::End(ended, caller.next(told.calls_back(&marks))));
        crash_point::reached(Point::BeforeEnd);
        match word.write(&mut self.owner).await {
            Ok(()) => self.log_end(None, told.failure.as_deref()),
            Err(WriteError::Fenced(found)) => return self.superseded(&found),
            Err(error) => {
                tracing::warn!(operation = %self.owner.operation.id, %error, "end of the run not written yet");
                self.keep_writing(word);
            }
        }
        crash_point::reached(Point::AfterEnd);
        if doubtful {
            self.lane.counters.unknown.add();
        }
        self.find_earlier().await;
        let marks = Marks { earlier: self.earlier, ..marks };
        match told.answer {
            Some(UpstreamAnswer { head, body }) => match body.whole() {
                Ok(body) => {
                    let body = self.room.take().around(body);
                    Conclusion::Answer { status: head.status, headers: head.headers, body, marks }
                }
                Err(unfinished) => Box::pin(self.pass_live(head, *unfinished, marks, caller)).await,
            },
            None => Conclusion::Problem { problem: self.problem(doubtful, &told), marks },
        }
    }

    /// The look for an earlier call of the same step goes on beside the run, and holds up nothing that has to be durable.
    async fn find_earlier(&mut self) {
        let Some(looking) = self.looking.take() else { return };
        let looked = match self.owner.operation.state.lease() {
            Some(_) => self.owner.holding(looking).await,
            None => looking.await,
        };
        self.earlier = looked.unwrap_or_default();
    }

    /// The store did not take a step on the way to the next send: the run ends with what its attempts came to. If they
    /// came to nothing, an owner whose lease was over says so, too: he alone knows.
    pub(super) async fn broken_off(&mut self, error: WriteError, ended: Ended, caller: &FirstCaller) -> Conclusion {
        let error = match error {
            WriteError::Fenced(_) if !ended.may_have_run => {
                let word = self.word(Word::End(ended, Next::Person));
                match word.write(&mut self.owner).await {
                    Ok(()) => {
                        self.log_end(None, None);
                        return self.superseded(&Found::new(self.owner.operation.clone(), None));
                    }
                    Err(error) => error,
                }
            }
            error => error,
        };
        let WriteError::Store(error) = error else { return self.lost(error) };
        tracing::warn!(operation = %self.owner.operation.id, %error, "store step failed before the send");
        if ended.may_have_run || self.owner.operation.may_have_run {
            self.keep_writing(self.word(Word::End(ended, Next::Person)));
            self.lane.counters.unknown.add();
            let detail = format!("An attempt may have run, and no further one was sent: {error}.");
            let problem = Problem::new(Code::OutcomeUnknown, detail).with_status(StatusCode::BAD_GATEWAY.as_u16());
            let problem = self.left_in_doubt(problem);
            return Conclusion::Problem { problem, marks: self.marks(Execution::Unknown, None) };
        }
        let problem = match self.tries.tries {
            0 | 1 if ended.cause == Cause::Store => refusal::store_problem(&error),
            _ => refusal::store_problem_between_attempts(&error),
        };
        self.keep_writing(self.word(Word::End(ended, caller.next(problem.retry_after.is_some()))));
        Conclusion::Problem { problem, marks: self.marks(Execution::NotExecuted, None) }
    }

    /// Somebody else has the operation now; what he made of it is what there is to say.
    pub(super) fn lost(&self, error: WriteError) -> Conclusion {
        tracing::warn!(operation = %self.owner.operation.id, %error, "ownership lost");
        match error {
            WriteError::Fenced(found) => self.superseded(&found),
            WriteError::Store(_) | WriteError::Gone | WriteError::Illegal(_) => {
                refusal::in_progress(self.owner.operation.id, &self.owner.operation.identity)
            }
        }
    }

    pub(super) fn superseded(&self, found: &Found) -> Conclusion {
        superseded(&self.owner, found)
    }

    /// Tries until the deadline: the caller is better served with a receipt late than with none at once.
    pub(super) async fn make_durable(&mut self, word: &LastWord) -> Durable {
        let until = self.deadline.max(Instant::now() + GRACE);
        let mut pause = FIRST_PAUSE;
        crash_point::reached(Point::BeforeSettle);
        loop {
            match word.write(&mut self.owner).await {
                Ok(()) => {
                    crash_point::reached(Point::AfterSettle);
                    self.log_end(self.owner.operation.state.settled().map(|settled| settled.status), None);
                    return Durable::Yes;
                }
                Err(WriteError::Fenced(found)) => return Durable::Superseded(found),
                Err(error @ (WriteError::Gone | WriteError::Illegal(_))) => {
                    tracing::error!(operation = %self.owner.operation.id, %error, "receipt not kept");
                    return Durable::NotYet;
                }
                Err(WriteError::Store(error)) => {
                    tracing::warn!(operation = %self.owner.operation.id, %error, "receipt not kept yet");
                    // A store that lost its memory waits for a person, and no caller has to.
                    let waits_for_a_person = matches!(error, StoreError::LostMemory(_));
                    if !error.may_pass() || waits_for_a_person || Instant::now() >= until {
                        return Durable::NotYet;
                    }
                }
            }
            sleep_until(until.min(Instant::now() + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The run is over and nobody else writes as this owner, so a task may go on in its name.
    pub(super) fn keep_writing(&self, word: LastWord) {
        self.engine.shared.tasks.spawn(word.keep_writing(self.owner.clone(), self.pilot.hold()));
    }

    pub(super) fn word(&self, word: Word) -> LastWord {
        LastWord { word, keep: self.keep, write: WriteId(self.engine.shared.entropy.bytes()) }
    }

    pub(super) fn settled(&self, status: StatusCode, length: u64, digest: [u8; 32], kept: Kept) -> Settled {
        let receipt_until = self.owner.store().now().after(self.keep.receipts);
        Settled { status: status.as_u16(), length, digest, kept, receipt_until, after_doubt: false }
    }
}

/// What somebody else made of the operation.
fn superseded(owner: &Owner, found: &Found) -> Conclusion {
    refusal::of_record(found, found.operation.admit(None, &ResendRule::NONE, owner.store().now()))
}
