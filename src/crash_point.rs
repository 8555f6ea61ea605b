//! Named places in the life of an operation at which a test lets the process die or stand still.
//!
//! Only the feature `crash-points` compiles this in, and no release has it: without it every call here is nothing.

#[cfg(feature = "crash-points")]
mod armed;

#[cfg(feature = "crash-points")]
pub use armed::{OrderError, VARIABLE, arm, midway, reached};

/// A place between two things of which one may be done without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "crash-points", derive(serde::Deserialize))]
pub enum Point {
    /// The call has its name, and the store has not been asked for it.
    BeforeClaim,
    AfterClaim,
    BeforeConnect,
    AfterConnect,
    /// The intent is durable, and no byte has gone.
    BeforeSend,
    /// The transport has taken bytes of the request, and nobody has looked for an answer.
    AfterSend,
    AfterHead,
    /// A piece is here of an answer that is kept back until it is whole.
    InBody,
    /// A piece of a live answer is on its way to the client.
    InLiveBody,
    BeforeSettle,
    /// The receipt is durable, and the client has not seen the end.
    AfterSettle,
    /// The run is over without a receipt, and the record does not say so.
    BeforeEnd,
    AfterEnd,
    BeforeRenewal,
    AfterRenewal,
    /// Another attempt is due later, and the record does not say so.
    BeforeWait,
    InWait,
    AfterWait,
    /// A caller found a record that nobody owns.
    BeforeTakeOver,
    AfterTakeOver,
    /// The sweep found one, and goes on with it.
    BeforeRecovery,
    AfterRecovery,
    /// A caller or the sweep ends one that nobody may go on with.
    BeforeLapse,
    AfterLapse,
    /// A claim without an answer is to be taken back.
    BeforeWithdrawal,
    AfterWithdrawal,
    /// A step that writes has been given to the store: file, not committed; Redis, no reply read.
    StoreAsked,
    /// It is done, and nobody has been told.
    StoreDone,
}

/// The process has come to `point`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn reached(_: Point) {}

/// A step that comes to `point` once it has been begun and before its answer is read.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn midway<F: Future>(_: Point, step: F) -> F {
    step
}
