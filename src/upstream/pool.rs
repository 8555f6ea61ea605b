//! Unused connections to one upstream. They have no task; one sweep closes those that nobody came for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::connection::Line;

/// A stack: the connection used last is the most likely to be alive.
pub(super) struct Pool {
    idle_for: Duration,
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    idle: Vec<Idle>,
    /// The task that sweeps, while there is something to sweep.
    sweep: Option<AbortHandle>,
}

struct Idle {
    line: Box<Line>,
    since: Instant,
    /// Before the upstream closes it.
    until: Instant,
}

impl Pool {
    pub(super) fn new(idle_for: Duration, max: usize) -> Self {
        Self { idle_for, max, state: Mutex::default() }
    }

    /// The connection used last, if it is alive and has been unused for less than `longest`.
    pub(super) fn take(&self, longest: Duration) -> Option<Box<Line>> {
        let (mut state, now) = (self.lock(), Instant::now());
        while let Some(mut newest) = state.idle.pop() {
            if now.duration_since(newest.since) >= longest {
                state.idle.push(newest);
                return None;
            }
            if newest.until > now && newest.line.is_idle() {
                return Some(newest.line);
            }
        }
        None
    }

    /// Keeps a connection for the next request, or closes it: if it cannot carry one, or if there are enough.
    pub(super) fn put(self: &Arc<Self>, mut line: Box<Line>) {
        if !line.is_idle() {
            return;
        }
        let mut state = self.lock();
        if state.idle.len() >= self.max {
            return;
        }
        let since = Instant::now();
        state.idle.push(Idle { until: since + self.idle_for.min(usable(&line)), line, since });
        if state.sweep.is_none() {
            state.sweep = Some(tokio::spawn(sweep(Arc::downgrade(self), self.idle_for)).abort_handle());
        }
    }

    /// Closes what has been unused for too long or was closed by the upstream. Returns whether anything is left; if
    /// not, the sweep is over and the next `put` starts another.
    fn close_stale(&self) -> bool {
        let mut state = self.lock();
        state.idle.retain_mut(|idle| idle.until > Instant::now() && idle.line.is_idle());
        let left = !state.idle.is_empty();
        if !left {
            state.sweep = None;
        }
        left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().idle.len()
    }
}

/// How much of the time that the upstream states is ours; the rest is for the way there.
fn usable(line: &Line) -> Duration {
    line.kept_for.map_or(Duration::MAX, |stated| stated - stated / 5)
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(sweep) = self.lock().sweep.take() {
            sweep.abort();
        }
    }
}

async fn sweep(pool: Weak<Pool>, every: Duration) {
    loop {
        sleep(every).await;
        let left = pool.upgrade().is_some_and(|pool| pool.close_stale());
        if !left {
            return;
        }
    }
}
