//! What a gateway has stored of one operation, past the gateway: read, changed and put back, as a disk or an intruder
//! would change it.

use redis::{Commands, Connection as RedisConnection};
use rusqlite::{Connection, params};

use crate::support::ground::Ground;

/// One thing that is stored of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Record,
    Receipt,
    Request,
    /// The first one.
    Event,
}

/// The store under a gateway that has a single operation, or one of several by its place, oldest first.
pub enum Stored {
    File { connection: Connection, serial: i64 },
    Redis { connection: RedisConnection, id: String },
}

impl Stored {
    /// Of the operation `id`, which was the `serial`th.
    pub fn of(ground: &Ground, id: &str, serial: i64) -> Self {
        match ground {
            Ground::File(_) => Self::File { connection: Connection::open(ground.path()).unwrap(), serial },
            Ground::Redis(server) => {
                let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
                Self::Redis { connection, id: id.to_owned() }
            }
            Ground::Memory => panic!("nothing is stored"),
        }
    }

    pub fn read(&mut self, part: Part) -> Vec<u8> {
        match self {
            Self::File { connection, serial } => {
                let (table, column, only) = place(part);
                let select = format!("SELECT {column} FROM {table} WHERE serial = ?1 {only}");
                connection.query_row(&select, [*serial], |row| row.get(0)).unwrap()
            }
            Self::Redis { connection, id } => {
                let key = key(connection, part, id);
                match part {
                    Part::Event => connection.lindex(key, 0).unwrap(),
                    Part::Record | Part::Receipt | Part::Request => connection.get(key).unwrap(),
                }
            }
        }
    }

    pub fn write(&mut self, part: Part, bytes: &[u8]) {
        match self {
            Self::File { connection, serial } => {
                let (table, column, only) = place(part);
                let update = format!("UPDATE {table} SET {column} = ?2 WHERE serial = ?1 {only}");
                assert_eq!(connection.execute(&update, params![*serial, bytes]).unwrap(), 1);
            }
            Self::Redis { connection, id } => {
                let key = key(connection, part, id);
                match part {
                    Part::Event => connection.lset(key, 0, bytes).unwrap(),
                    Part::Record | Part::Receipt | Part::Request => {
                        redis::cmd("SET").arg(key).arg(bytes).arg("KEEPTTL").exec(connection).unwrap();
                    }
                }
            }
        }
    }

    /// Turns some bits of one byte over; twice is as before.
    pub fn flip(&mut self, part: Part, at: usize, bits: u8) {
        let mut bytes = self.read(part);
        bytes[at] ^= bits;
        self.write(part, &bytes);
    }
}

fn place(part: Part) -> (&'static str, &'static str, &'static str) {
    match part {
        Part::Record => ("operations", "record", ""),
        Part::Receipt => ("receipts", "receipt", ""),
        Part::Request => ("requests", "request", ""),
        Part::Event => ("events", "event", "AND revision = 1"),
    }
}

fn key(connection: &mut RedisConnection, part: Part, id: &str) -> String {
    let letter = match part {
        Part::Record => 'r',
        Part::Receipt => 'a',
        Part::Request => 'q',
        Part::Event => 'e',
    };
    let mut keys: Vec<String> = connection.keys(format!("*:{letter}:{id}")).unwrap();
    keys.pop().unwrap_or_else(|| panic!("no {part:?} of {id}"))
}
