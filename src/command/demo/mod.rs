//! `oncegate demo`: a charge that happens three times, and once through the gateway. Offline; nothing is left behind.
//!
//! One agent, one service and one list of mishaps, played twice. Every line shown was measured: what the agent says is
//! what came back to it, what the service says is what it did. The gateway is this program, as a process of its own.

mod agent;
mod gateway;
mod ledger;
mod page;
mod service;
mod story;

use std::future::Future;
use std::io;
use std::process::ExitCode;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::gateway::Gateway;
use self::page::Page;
use self::service::Service;
use super::Process;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Play without pauses and end with the last line, as without a terminal.
    #[arg(long)]
    fast: bool,
}

/// What kept the demo from being played.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("the operating system refuses what the demo needs")]
    System(#[from] io::Error),
    #[error("the gateway cannot be started")]
    Start(#[source] io::Error),
    #[error("the gateway did not get ready; its log says: {log}")]
    NotReady { log: String },
    #[error("a task of the demo ended abnormally")]
    Task(#[from] tokio::task::JoinError),
}

/// Plays the story twice, side by side, and fails if the gateway did not keep its promise.
///
/// # Errors
/// A process or a socket of the demo could not be started.
pub fn run(arguments: &Arguments, process: &Process) -> Result<ExitCode, DemoError> {
    let page = Page::new(arguments.fast);
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        interrupts.or(play(&page, process)).await.unwrap_or(Ok(ExitCode::SUCCESS))
    })
}

async fn play(page: &Page, process: &Process) -> Result<ExitCode, DemoError> {
    page.title();
    let without = Service::start().await?;
    story::without(page, &without).await?;

    let through = Service::start().await?;
    let mut gateway = Gateway::new(process, through.address())?;
    story::through(page, &through, &mut gateway).await?;

    page.summary(through.charges(), without.charges());
    if page.stays() {
        page.to_try(&gateway);
        follow(page, &through).await;
    }
    Ok(if through.charges() == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows what the service does for the calls of whoever watches.
async fn follow(page: &Page, service: &Service) {
    loop {
        service.at_work().await;
        service.deeds().iter().for_each(|deed| page.deed(deed));
    }
}

/// Ctrl-C and SIGTERM end the demo in order: the gateway's process and its folder go with it.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// What `work` comes to; `None` if it was interrupted.
    async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = self.interrupt.recv() => None,
            _ = self.terminate.recv() => None,
        }
    }
}
