//! Redis dies in every way that it can, as the program's clients see it: guarded calls are refused in time and not sent,
//! the rest goes on, and nobody has to start anything again.

mod crowd;
mod owner;
mod scene;
mod server;
mod start;
mod way;
