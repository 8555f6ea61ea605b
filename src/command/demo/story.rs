//! The story: four moves of an agent that wants one charge. With and without the gateway it makes the same ones.

use std::time::Duration;

use tokio::time::timeout;

use super::DemoError;
use super::agent::{Agent, Saw};
use super::gateway::Gateway;
use super::page::Page;
use super::service::Service;

const FIRST_WORDS: &str = "order 42";
const OTHER_WORDS: &str = "payment for order 42, as agreed";

/// A gateway that is back takes up what it left, within a second; if it does not, the agent's repeat makes it.
const TAKE_UP: Duration = Duration::from_secs(5);

/// The agent talks to the service itself.
pub(super) async fn without(page: &Page, service: &Service) -> Result<(), DemoError> {
    page.part("Without oncegate: agent -> payment service");
    let agent = Agent { base: service.address() };

    page.step(1, "charges order 42; in mid-call its machine goes down").await;
    page.row(&killed_in_mid_call(agent, service, || {}).await?, &service.deeds());

    page.step(2, "starts again, and words the same call anew").await;
    page.row(&agent.charge(OTHER_WORDS).await, &service.deeds());

    finish(page, service, agent).await;
    Ok(())
}

/// The agent has another base URL.
pub(super) async fn through(page: &Page, service: &Service, gateway: &mut Gateway) -> Result<(), DemoError> {
    page.part("Through oncegate: agent -> gateway -> payment service");
    gateway.start().await?;
    let agent = Agent { base: gateway.listen };

    page.step(1, "charges order 42; in mid-call its machine goes down, the gateway with it (kill -9)").await;
    page.row(&killed_in_mid_call(agent, service, || gateway.kill()).await?, &service.deeds());

    page.step(2, "starts again, as does the gateway, and words the same call anew").await;
    gateway.start().await?;
    // Without a word from the agent. Too late is no harm: then its repeat takes the call up.
    timeout(TAKE_UP, service.at_work()).await.unwrap_or_default();
    page.row(&agent.charge(OTHER_WORDS).await, &service.deeds());

    finish(page, service, agent).await;
    Ok(())
}

/// The machine goes down while the service has done its work and has not answered yet.
async fn killed_in_mid_call(agent: Agent, service: &Service, kill: impl FnOnce()) -> Result<Saw, DemoError> {
    let call = tokio::spawn(agent.charge(FIRST_WORDS));
    service.at_work().await;
    kill();
    call.abort();
    match call.await {
        Ok(saw) => Ok(saw),
        Err(error) if error.is_cancelled() => Ok(Saw::Killed),
        Err(error) => Err(error.into()),
    }
}

async fn finish(page: &Page, service: &Service, agent: Agent) {
    page.step(3, "repeats the call").await;
    page.row(&agent.charge(OTHER_WORDS).await, &service.deeds());

    page.step(4, "gets the task from its queue a second time, as it was").await;
    page.row(&agent.charge(FIRST_WORDS).await, &service.deeds());
}
