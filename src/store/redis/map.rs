//! Who serves which slots of a cluster, as it was drawn last.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::redis_url::Host;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::failure::Redirect;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{Terms, Whereabouts};
use crate::store::redis::node::Node;

/// What the nodes of a cluster say of themselves.
pub(super) type Ranges = Vec<(RangeInclusive<u16>, Host)>;

/// Masters keep their lines from one map to the next.
#[derive(Default)]
pub(super) struct Map {
    ranges: Ranges,
    /// Slots that a server said were elsewhere, since the map was drawn.
    moved: HashMap<u16, Host>,
    nodes: HashMap<Host, Arc<Node>>,
    /// Why there is none.
    pub(super) failure: Option<Arc<OpenError>>,
}

impl Map {
    /// The first map, with lines to all masters in it.
    ///
    /// # Errors
    /// A server answered and must not be used.
    pub(super) async fn open(ranges: Ranges, terms: &Terms) -> Result<Self, OpenError> {
        let mut nodes = HashMap::new();
        for (_, host) in &ranges {
            if !nodes.contains_key(host) {
                let whereabouts = Whereabouts::Mapped(host.clone());
                let node = Node::open(whereabouts, terms.clone(), ServerClock::new()).await?;
                nodes.insert(host.clone(), Arc::new(node));
            }
        }
        Ok(Self { ranges, nodes, ..Self::default() })
    }

    /// True if it was another one before.
    pub(super) fn redraw(&mut self, ranges: Ranges, terms: &Terms, now: Timestamp) -> bool {
        if self.ranges == ranges && self.moved.is_empty() {
            return false;
        }
        let before = std::mem::take(&mut self.nodes);
        for (_, host) in &ranges {
            if let Some(node) = before.get(host) {
                self.nodes.insert(host.clone(), Arc::clone(node));
            }
            self.node_at(host, terms, now);
        }
        (self.ranges, self.failure) = (ranges, None);
        self.moved.clear();
        true
    }

    /// The node that a server pointed to.
    pub(super) fn redirect(&mut self, redirect: &Redirect, terms: &Terms, now: Timestamp) -> Arc<Node> {
        if !redirect.asking {
            self.moved.insert(redirect.slot, redirect.host.clone());
        }
        self.node_at(&redirect.host, terms, now)
    }

    pub(super) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.nodes.get(self.host_of(slot)?).cloned()
    }

    pub(super) fn host_of(&self, slot: u16) -> Option<&Host> {
        let in_ranges = || self.ranges.iter().find(|(slots, _)| slots.contains(&slot)).map(|(_, host)| host);
        self.moved.get(&slot).or_else(in_ranges)
    }

    /// Every master once.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.nodes.keys()
    }

    /// Every master once, in an order that stays.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_unstable_by_key(|(host, _)| *host);
        nodes.into_iter().map(|(_, node)| Arc::clone(node)).collect()
    }

    fn node_at(&mut self, host: &Host, terms: &Terms, now: Timestamp) -> Arc<Node> {
        let begin = || Arc::new(Node::begin(Whereabouts::Mapped(host.clone()), terms.clone(), ServerClock::at(now)));
        Arc::clone(self.nodes.entry(host.clone()).or_insert_with(begin))
    }
}
