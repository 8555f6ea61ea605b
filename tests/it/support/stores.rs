//! A way to open each store, for suites that run over all of them.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncegate::clock::Clock;
use oncegate::redis_url::RedisUrl;
use oncegate::store::Store;
use oncegate::store::file::{Durability, FileStore, OpenError, Settings};
use oncegate::store::memory::MemoryStore;
use oncegate::store::redis::{self, RedisStore};

use crate::support::redis_server::RedisServer;

/// An empty store, and what it stands on: a directory, a server. The ground goes when the rig does.
pub struct Rig {
    pub store: Arc<dyn Store>,
    _ground: Box<dyn Any + Send>,
}

impl Rig {
    pub fn new(store: impl Store, ground: impl Any + Send) -> Self {
        Self { store: Arc::new(store), _ground: Box::new(ground) }
    }
}

pub async fn memory() -> Rig {
    Rig::new(MemoryStore::new(Clock::system()), ())
}

pub async fn file() -> Rig {
    let directory = tempfile::tempdir().unwrap();
    Rig::new(open_file(&directory.path().join("store.db")).unwrap(), directory)
}

pub async fn redis() -> Rig {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url(), "contract", Duration::from_secs(30)).await.unwrap();
    Rig::new(store, server)
}

/// A file whose steps are on the disk when they are answered.
pub fn patient(timeout: Duration) -> Settings {
    Settings { timeout, durability: Durability::Fsync }
}

/// On servers that others use, too; with a timeout that a busy machine keeps. Their one replica has to have all.
pub async fn on(url: &str, namespace: &str) -> RedisStore {
    let settings = redis::Settings::new(RedisUrl::parse(url).unwrap(), namespace, Duration::from_secs(30));
    RedisStore::open(redis::Settings { replicas: Some(1), ..settings }).await.unwrap()
}

/// With a timeout that a busy machine keeps.
pub fn open_file(path: &Path) -> Result<FileStore, OpenError> {
    FileStore::open(path, patient(Duration::from_secs(30)), Clock::system(), &[])
}
