//! A store that tests fill by hand: it lists, reads, and is well or not.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::operation::transition::Change;
use crate::operation::{Event, Operation, OperationId, StoredRequest};
use crate::store::{Claimed, Found, History, Pace, Page, Store, StoreError, TooMany, Written};

/// How the store is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// It says that it cannot.
    Away,
    /// It says nothing.
    Silent,
}

/// Operations, newest first, and their events.
#[derive(Default)]
pub(crate) struct TestStore {
    pub(crate) mood: Mood,
    pub(crate) operations: Vec<Operation>,
    pub(crate) events: Vec<Event>,
    pub(crate) now: Timestamp,
}

#[async_trait]
impl Store for TestStore {
    fn now(&self) -> Timestamp {
        self.now
    }

    async fn claim(&self, _: &Change, _: Option<OperationId>) -> Result<Claimed, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn write(&self, _: &Change) -> Result<Written, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError> {
        self.ping().await?;
        let operation = self.operations.iter().find(|operation| operation.id == id).cloned();
        Ok(operation.map(|operation| Found::new(operation, None)))
    }

    async fn request(&self, _: OperationId) -> Result<Option<StoredRequest>, StoreError> {
        Ok(None)
    }

    async fn events(&self, _: OperationId) -> Result<History, StoreError> {
        Ok(History { events: self.events.clone(), ..History::default() })
    }

    async fn due(&self, _: usize) -> Result<Vec<OperationId>, StoreError> {
        Ok(Vec::new())
    }

    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.ping().await?;
        let start = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        let operations: Vec<_> = self.operations.iter().skip(start).take(limit).cloned().collect();
        let end = start + operations.len();
        Ok(Page { operations, unreadable: Vec::new(), next: (end < self.operations.len()).then(|| end.to_string()) })
    }

    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let mut page = self.list(cursor, limit).await?;
        page.operations.retain(|operation| operation.dead_letter().is_some());
        Ok(page)
    }

    async fn purge(&self, _: usize) -> Result<usize, StoreError> {
        Ok(0)
    }

    async fn remember(&self, _: &str, _: &str, _: Option<Timestamp>) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn hold(&self, _: &str, _: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn hold_if_over(&self, _: &str, _: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    async fn take(&self, _: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        Ok(Ok(()))
    }

    async fn replace_hold(&self, _: &str, _: Timestamp, _: Option<Timestamp>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        self.ping().await?;
        Ok(Vec::new())
    }

    async fn recall(&self, _: &str) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        match self.mood {
            Mood::Well => Ok(()),
            Mood::Away => Err(StoreError::Timeout),
            Mood::Silent => std::future::pending().await,
        }
    }
}
