//! Which operations have ended lately, as far as this process knows.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::operation::{OperationId, Receipt};

/// Of each of the two halves, the younger and the older one.
const MANY: usize = 1 << 14;
/// Bytes of a receipt that is looked at for a caller without a thought of how long that takes.
const SHORT: usize = 64 << 10;

/// A hint where a look is worth more than a claim: a repeat of a call that has ended finds its receipt. It says nothing
/// of what is stored, so it cannot be wrong; without it every new call would pay for the look.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<[HashSet<OperationId>; 2]>);

impl Ended {
    /// The operation has this receipt.
    pub(super) fn note(&self, id: OperationId, receipt: Option<&Receipt>) {
        if receipt.is_some_and(|receipt| receipt.body.len() <= SHORT) {
            self.add(id);
        }
    }

    fn add(&self, id: OperationId) {
        let [young, old] = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if young.len() >= MANY {
            std::mem::swap(young, old);
            young.clear();
        }
        young.insert(id);
    }

    pub(super) fn has(&self, id: OperationId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|half| half.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_their_number_is_bounded() {
        let ended = Ended::default();
        let id = |number: usize| OperationId::of(&[0; 32], "r", &number.to_string(), None);
        for number in 0..3 * MANY {
            ended.add(id(number));
        }
        assert!((2 * MANY..3 * MANY).all(|number| ended.has(id(number))));
        assert!(!ended.has(id(0)) && !ended.has(id(3 * MANY)));
        assert!(ended.0.lock().unwrap().iter().map(HashSet::len).sum::<usize>() <= 2 * MANY);
    }
}
