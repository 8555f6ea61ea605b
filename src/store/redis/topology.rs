//! Which server a request goes to: the one there is, or the one of a cluster that has its keys.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::redis_url::Layout;
use crate::store::StoreError;
use crate::store::redis::clock::ServerClock;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::failure::Redirect;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{Terms, Whereabouts};
use crate::store::redis::line::Line;
use crate::store::redis::node::Node;
use crate::store::redis::scripts::Request;
use crate::store::redis::sentinel::Sentinels;
use crate::store::redis::shares::Shares;
use crate::store::redis::slots::slot_of;
use crate::store::redis::surveyor::{self, Watch};
use crate::store::redis::wire::Wiring;

/// All servers of a store.
pub(super) enum Topology {
    One(Arc<Node>),
    Cluster { cluster: Arc<Cluster>, _watch: Watch },
}

impl Topology {
    /// `sentinels` is how those are spoken to.
    ///
    /// # Errors
    /// A server answered and must not be used.
    pub(super) async fn open(layout: Layout, terms: Terms, sentinels: &Wiring) -> Result<Self, OpenError> {
        let whereabouts = match layout {
            Layout::Cluster { seeds } => {
                return surveyor::open(seeds, terms).await.map(|(cluster, _watch)| Self::Cluster { cluster, _watch });
            }
            Layout::Server(host) => Whereabouts::Fixed(host),
            Layout::Sentinel { sentinels: hosts, master } => {
                Whereabouts::Named(Sentinels::new(hosts, master, sentinels, terms.timeout / 2))
            }
        };
        Ok(Self::One(Arc::new(Node::open(whereabouts, terms, ServerClock::new()).await?)))
    }

    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::One(node) => node.clock().now(),
            Self::Cluster { cluster, .. } => cluster.now(),
        }
    }

    /// The clock of the server that has `key`.
    pub(super) fn now_at(&self, key: impl FnOnce() -> String) -> Timestamp {
        match self {
            Self::One(node) => node.clock().now(),
            Self::Cluster { cluster, .. } => cluster.now_at(slot_of(key().as_bytes())),
        }
    }

    /// # Errors
    /// There is no line to that server.
    pub(super) async fn line(&self, request: &Request) -> Result<(Arc<Node>, Line), StoreError> {
        match self {
            Self::One(node) => node.line().await.map(|line| (Arc::clone(node), line)),
            Self::Cluster { cluster, .. } => cluster.line(request.key().map_or(0, slot_of)).await,
        }
    }

    /// Where a cluster says that a request should have gone.
    ///
    /// # Errors
    /// There is no line to that server.
    pub(super) async fn follow(&self, redirect: &Redirect) -> Result<(Arc<Node>, Line), StoreError> {
        match self {
            Self::One(node) => node.line().await.map(|line| (Arc::clone(node), line)),
            Self::Cluster { cluster, .. } => cluster.follow(redirect).await,
        }
    }

    /// A server is not there, or not what it was.
    pub(super) fn look_again(&self) {
        match self {
            Self::One(_) => {}
            Self::Cluster { cluster, .. } => cluster.look_again(),
        }
    }

    /// Has the memory of the servers examined anew.
    pub(super) fn examine_anew(&self) {
        match self {
            Self::One(node) => node.examine_anew(),
            Self::Cluster { cluster, .. } => cluster.examine_anew(),
        }
    }

    /// An operator's word that what is there is to be taken as it is; false if nothing was lost.
    ///
    /// # Errors
    /// A server does not answer, or must not be used for another reason.
    pub(super) async fn accept_loss(&self) -> Result<bool, OpenError> {
        match self {
            Self::One(node) => node.accept_loss().await,
            Self::Cluster { cluster, .. } => cluster.accept_loss().await,
        }
    }

    /// What an operator should change about the masters and their replicas.
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) async fn advice(&self) -> Result<Vec<String>, StoreError> {
        let nodes = match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Cluster { cluster, .. } => cluster.map.borrow().nodes(),
        };
        let mut advice = Vec::new();
        for node in nodes {
            advice.extend(node.advice().await?);
        }
        Ok(advice)
    }

    /// The commands of a request by the server of a cluster that has their keys; `None` if one is asked for all.
    pub(super) fn shares(&self, request: &Request) -> Option<Shares> {
        match (self, request) {
            (Self::Cluster { cluster, .. }, Request::Many(commands)) => Some(cluster.shares(commands)),
            (Self::One(_) | Self::Cluster { .. }, Request::One(_) | Request::Call(_) | Request::Many(_)) => None,
        }
    }
}
