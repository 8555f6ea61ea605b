//! Counts over the last moments, in a ring of slots. Moments are told as the time since the process began.

use std::time::Duration;

const SLOTS: usize = 10;

/// Counts of what happened within a span of time that ends now.
#[derive(Clone, Debug)]
pub struct Window<const N: usize> {
    slot_millis: u64,
    slots: [Slot<N>; SLOTS],
}

/// A tenth of the span.
#[derive(Clone, Copy, Debug)]
struct Slot<const N: usize> {
    /// Which one since the process began.
    number: u64,
    counts: [u64; N],
}

impl<const N: usize> Window<N> {
    /// Nothing counted yet. A span of less than ten milliseconds counts as that.
    pub fn new(span: Duration) -> Self {
        Self { slot_millis: (millis(span) / SLOTS as u64).max(1), slots: [Slot { number: 0, counts: [0; N] }; SLOTS] }
    }

    pub fn add(&mut self, counts: [u64; N], now: Duration) {
        let number = self.number(now);
        for slot in self.slots.iter_mut().skip((number % SLOTS as u64) as usize).take(1) {
            if slot.number != number {
                *slot = Slot { number, counts: [0; N] };
            }
            slot.counts = sum(slot.counts, counts);
        }
    }

    /// What was counted within the span.
    pub fn sums(&self, now: Duration) -> [u64; N] {
        let number = self.number(now);
        let live = self.slots.iter().filter(|slot| slot.number + SLOTS as u64 > number);
        live.fold([0; N], |sums, slot| sum(sums, slot.counts))
    }

    /// From one on, so that a slot that was never used counts as old.
    fn number(&self, now: Duration) -> u64 {
        millis(now) / self.slot_millis + SLOTS as u64
    }
}

fn sum<const N: usize>(mut counts: [u64; N], more: [u64; N]) -> [u64; N] {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
    counts
}

fn millis(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(u64::from(duration.subsec_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_is_older_than_the_span_does_not_count() {
        let mut window = Window::new(ms(1000));
        assert_eq!(window.sums(ms(0)), [0, 0]);
        window.add([1, 0], ms(0));
        window.add([2, 5], ms(450));
        assert_eq!(window.sums(ms(450)), [3, 5]);
        assert_eq!(window.sums(ms(999)), [3, 5]);
        assert_eq!(window.sums(ms(1000)), [2, 5]);
        assert_eq!(window.sums(ms(1399)), [2, 5]);
        assert_eq!(window.sums(ms(1400)), [0, 0]);
    }

    #[test]
    fn a_slot_that_comes_round_begins_anew() {
        let mut window = Window::new(ms(1000));
        window.add([7, 7], ms(50));
        window.add([1, 0], ms(1050));
        window.add([1, 1], ms(86_400_000));
        assert_eq!(window.sums(ms(86_400_000)), [1, 1]);
    }

    #[test]
    fn no_span_is_too_short() {
        let mut window = Window::new(Duration::ZERO);
        window.add([1, 0], ms(3));
        assert_eq!((window.sums(ms(12)), window.sums(ms(13))), ([1, 0], [0, 0]));
    }
}
