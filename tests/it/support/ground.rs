//! What a gateway keeps its records on.

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
            Self::File(directory) => format!("file:{}", directory.path().join("store.db").display()),
            Self::Redis(server) => server.url(),
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
