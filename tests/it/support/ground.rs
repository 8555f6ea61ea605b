//! What a gateway keeps its records on.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::redis_server::RedisServer;

/// A place for records that outlives the gateways on it, all but `Memory`. It goes when this does.
pub enum Ground {
    Memory,
    File(TempDir),
    Redis(RedisServer),
}

impl Ground {
    pub fn memory() -> Self {
        Self::Memory
    }

    pub fn file() -> Self {
        Self::File(tempfile::tempdir().unwrap())
    }

    pub fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    /// As `store.url` says it.
    pub fn url(&self) -> String {
        match self {
            Self::Memory => "memory:".to_owned(),
            Self::File(_) => format!("file:{}", self.path().display()),
            Self::Redis(server) => server.url(),
        }
    }

    /// The file under the store.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File(directory) => directory.path().join("store.db"),
            Self::Memory | Self::Redis(_) => panic!("no file under this store"),
        }
    }

    /// The server, to be hurt.
    pub fn server(&mut self) -> &mut RedisServer {
        match self {
            Self::Redis(server) => server,
            Self::Memory | Self::File(_) => panic!("no server under this store"),
        }
    }
}
