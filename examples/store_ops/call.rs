//! The steps of one call, as the engine would write them.

use std::time::Duration;

use oncegate::clock::Timestamp;
use oncegate::entropy::Entropy;
use oncegate::operation::transition::{self, Change, Opening, Ownership, Retention, Step, Verdict};
use oncegate::operation::{
    Fingerprint, Identity, Kept, KeySource, Operation, OperationId, OwnerId, Receipt, Scope, Settled, StoredRequest,
    WriteId,
};

use super::Failure;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
const KEEP: Retention = Retention { receipts: HOUR, tombstones: HOUR, unknowns: None };

/// A claim that counts its send, of a key of its own.
pub(crate) fn claim(now: Timestamp, entropy: &Entropy) -> Result<Change, Failure> {
    let key = u128::from_be_bytes(entropy.bytes()).to_string();
    let identity = Identity {
        scope: Scope::none(),
        route: "payments".to_owned(),
        key: key.clone(),
        upstream_key: Some(key.clone()),
        source: KeySource::Client,
        fingerprint: Fingerprint { version: 1, digest: [0; 32] },
        session: None,
        step: None,
        alike: None,
        rules: [0; 8],
    };
    let request = StoredRequest {
        method: "POST".to_owned(),
        target: "/charges".to_owned(),
        headers: std::sync::Arc::default(),
        body: vec![b'x'; 512].into(),
        had_credential: false,
    };
    let id = OperationId::of(Scope::none().digest(), "payments", &key, None);
    let ownership = Ownership {
        owner: OwnerId(entropy.bytes()),
        lease: HOUR,
        deadline: now.after(HOUR),
        destination: [0; 8],
        accepted: false,
    };
    let step = Step { now, write: WriteId(entropy.bytes()) };
    Ok(transition::claim(id, identity, request, ownership, Opening::Sent, step)?)
}

/// An answer of 1 KiB.
pub(crate) fn settle(operation: &Operation, now: Timestamp, entropy: &Entropy) -> Result<Change, Failure> {
    let receipt = Receipt { status: 200, headers: std::sync::Arc::default(), body: vec![b'x'; 1024].into() };
    let settled = Settled {
        status: 200,
        length: 1024,
        digest: [0; 32],
        kept: Kept::Whole,
        receipt_until: now.after(HOUR),
        after_doubt: false,
    };
    let step = Step { now, write: WriteId(entropy.bytes()) };
    Ok(operation.settle(Verdict::Succeeded, settled, Some(receipt), KEEP, step)?)
}
