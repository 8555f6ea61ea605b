//! Notices the same client's key under two scopes: with `scope = "credential"` a refreshed token is a new caller, and
//! then a retry runs again. Nobody can tell that from two callers who chose equal keys, so it is only said.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::call::NamedCall;
use crate::operation::{KeySource, OperationId, Scope};

/// Keys that are remembered; when they are too many, all are forgotten at once.
const KEYS: usize = 10_000;

/// The scope under which each key was last seen in this process.
#[derive(Clone, Default)]
pub struct Scopes(Arc<Mutex<HashMap<OperationId, [u8; 32]>>>);

impl Scopes {
    /// Notes the call's scope; true if its key was last seen under another one.
    pub fn differ(&self, named: &NamedCall) -> bool {
        if named.identity.source != KeySource::Client {
            return false;
        }
        let name = OperationId::of(Scope::none().digest(), &named.identity.route, &named.identity.key, None);
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= KEYS {
            seen.clear();
        }
        let before = seen.insert(name, *named.identity.scope.digest());
        before.is_some_and(|before| before != *named.identity.scope.digest())
    }
}
