//! How long nothing has been under way, where many things share one connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Counts what is under way. Idle from its first moment.
pub struct Idleness {
    state: Mutex<State>,
    /// Told when nothing is under way any more.
    idle: Notify,
}

struct State {
    busy: usize,
    since: Instant,
}

/// One thing that is under way, until it is dropped.
pub struct Busy(Arc<Idleness>);

impl Idleness {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { busy: 0, since: Instant::now() }), idle: Notify::new() })
    }

    /// One more is under way.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.lock().busy += 1;
        Busy(Arc::clone(self))
    }

    /// How many are under way.
    pub fn busy(&self) -> usize {
        self.lock().busy
    }

    /// Waits until nothing has been under way for `limit` on end. For one who waits; a second one may miss it.
    pub async fn lasts(&self, limit: Duration) {
        loop {
            match self.since() {
                None => self.idle.notified().await,
                Some(since) => {
                    sleep_until(since + limit).await;
                    if self.since() == Some(since) {
                        return;
                    }
                }
            }
        }
    }

    fn since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.busy == 0).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 {
            state.since = Instant::now();
            self.0.idle.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn idleness_counts_from_the_end_of_the_last_one() {
        let (start, idleness) = (Instant::now(), Idleness::new());
        let (first, second) = (idleness.begin(), idleness.begin());
        let user = tokio::spawn(async move {
            sleep(Duration::from_secs(25)).await;
            drop(first);
            sleep(Duration::from_secs(5)).await;
            drop(second);
        });
        idleness.lasts(LIMIT).await;
        assert_eq!(start.elapsed(), Duration::from_secs(40));
        user.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_in_between_begins_it_anew() {
        let (start, idleness) = (Instant::now(), Idleness::new());
        let waits = timeout(Duration::from_secs(3), idleness.lasts(LIMIT)).await;
        assert!(waits.is_err());
        drop(idleness.begin());
        idleness.lasts(LIMIT).await;
        assert_eq!((start.elapsed(), idleness.busy()), (Duration::from_secs(13), 0));
    }
}
