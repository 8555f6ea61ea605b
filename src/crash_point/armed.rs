//! What the feature adds: the orders that a process was started with, and their execution.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

use super::Point;

/// The environment variable with the orders: `point:nth:action`, with commas between them. A point is written as its
/// variant, `nth` counts the arrivals from 1, an action is `kill` (SIGKILL) or `stop` (SIGSTOP).
pub const VARIABLE: &str = "ONCEGATE_CRASH_POINTS";

/// Turns of the runtime after which whoever moves the bytes of a step has had his.
const TURNS: u32 = 3;

static ORDERS: OnceLock<Vec<Order>> = OnceLock::new();

/// What is to happen, and when.
#[derive(Debug)]
struct Order {
    point: Point,
    signal: Signal,
    /// Until the one that counts.
    arrivals_left: AtomicU32,
}

/// An order that nobody can carry out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no order for a crash point; one is `point:nth:action`, such as `AfterSend:1:kill`")]
pub struct OrderError(String);

/// Takes the orders of this process, once.
///
/// # Errors
/// One of them cannot be read, or there were orders before.
pub fn arm(orders: Option<String>) -> Result<(), OrderError> {
    let Some(orders) = orders else { return Ok(()) };
    let read = orders.split(',').map(order).collect::<Result<_, _>>()?;
    ORDERS.set(read).map_err(|_| OrderError(orders))
}

/// The process has come to `point`. If that is the arrival it was told of it dies here, or stands still until somebody
/// lets it go on.
pub fn reached(point: Point) {
    for order in ORDERS.get().into_iter().flatten() {
        if order.point == point && order.arrivals_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_process(getpid(), order.signal).unwrap_or_default();
        }
    }
}

/// A step that comes to `point` once it has been begun and before its answer is read.
pub async fn midway<F: Future>(point: Point, step: F) -> F::Output {
    let mut step = pin!(step);
    let mut turn = if ORDERS.get().is_some() { 0 } else { TURNS };
    poll_fn(|cx| {
        turn = turn.saturating_add(1);
        if turn < TURNS {
            cx.waker().wake_by_ref();
        }
        if turn == TURNS {
            reached(point);
        }
        if turn == 1 || turn >= TURNS { step.as_mut().poll(cx) } else { Poll::Pending }
    })
    .await
}

fn order(text: &str) -> Result<Order, OrderError> {
    parse(text).ok_or_else(|| OrderError(text.to_owned()))
}

fn parse(text: &str) -> Option<Order> {
    let [point, nth, action] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    let point = Point::deserialize(StrDeserializer::<Error>::new(point)).ok()?;
    let arrivals_left = AtomicU32::new(nth.parse().ok().filter(|nth| *nth > 0)?);
    let signal = match action {
        "kill" => Signal::KILL,
        "stop" => Signal::STOP,
        _ => return None,
    };
    Some(Order { point, signal, arrivals_left })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_point_arrival_and_action() {
        let read = order("AfterSend:2:stop").unwrap();
        assert_eq!((read.point, read.signal), (Point::AfterSend, Signal::STOP));
        assert_eq!(read.arrivals_left.into_inner(), 2);
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for text in ["", "AfterSend", "after-send:1:kill", "AfterSend:0:kill", "AfterSend:1:hang", "AfterSend:1:kill:2"]
        {
            assert_eq!(order(text).unwrap_err(), OrderError(text.to_owned()));
        }
    }

    #[tokio::test]
    async fn a_step_is_taken_to_its_end_whether_or_not_there_are_orders() {
        assert_eq!(midway(Point::StoreAsked, async { 7 }).await, 7);
        assert_eq!(midway(Point::StoreAsked, async { tokio::task::yield_now().await }).await, ());
    }
}
