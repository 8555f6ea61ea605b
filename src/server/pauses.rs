//! `/v1/pauses`: what an upstream asked for, seen, set and ended by an operator.

use std::collections::BTreeSet;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde::Serialize;

use crate::config::Config;
use crate::engine::gates::command::{CommandError, PauseCommand, PauseRow};
use crate::engine::problem::{Code, Problem};
use crate::server::admin::{AdminState, refuse_pages, store_problem};
use crate::server::body::ResponseBody;
use crate::server::filter::plain;
use crate::server::respond;

pub(super) const ADDRESS: &str = "/v1/pauses";

/// Nobody holds calls back for longer by one word.
const LONGEST: u64 = 3600;

const SAYS: &str = "PUT /v1/pauses?upstream=NAME&seconds=N says for how long, up to 3600; 0 ends it. It holds the service at \
                    the url of this upstream, for all upstreams that lead there. \
                    &credential=DIGEST, as GET /v1/pauses shows it, is for one credential only.";

#[derive(Serialize)]
struct PauseList {
    pauses: Vec<PauseRow>,
}

/// The list, after whatever was asked to be done.
pub(super) async fn answer(state: &AdminState, head: &Parts) -> Result<Response<ResponseBody>, Problem> {
    match head.method {
        Method::GET | Method::HEAD => {}
        Method::PUT => {
            refuse_pages(&head.headers)?;
            let command = read(head.uri.query()).ok_or_else(|| Problem::new(Code::InvalidRequest, SAYS))?;
            let done = state.gates().command(state.store().as_ref(), &command).await;
            if matches!(done, Ok(()) | Err(CommandError::Store(_))) {
                let (upstream, seconds, is_stored) = (&command.upstream, command.wait.as_secs(), done.is_ok());
                tracing::warn!(
                    upstream,
                    credential = command.credential,
                    seconds,
                    is_stored,
                    "an operator set a pause"
                );
            }
            done.map_err(|error| refused(error, state.config()))?;
        }
        _ => return Ok(respond::wrong_method("GET, HEAD, PUT")),
    }
    Ok(respond::json(StatusCode::OK, &PauseList { pauses: state.gates().pauses() }))
}

/// What is not known is not left out: a pause of the wrong ones would be worse than none.
fn read(query: Option<&str>) -> Option<PauseCommand> {
    let (mut upstream, mut credential, mut seconds) = (None, None, None);
    for pair in query?.split('&') {
        let (name, value) = pair.split_once('=')?;
        match name {
            "upstream" => upstream = Some(plain(value)),
            "credential" => credential = Some(plain(value)),
            "seconds" => seconds = Some(value.parse().ok().filter(|seconds| *seconds <= LONGEST)?),
            _ => return None,
        }
    }
    Some(PauseCommand { upstream: upstream?, credential, wait: Duration::from_secs(seconds?) })
}

fn refused(error: CommandError, config: &Config) -> Problem {
    let detail = format!("{error}.");
    match error {
        CommandError::Store(source) => Problem { detail: format!("{detail} {source}."), ..store_problem(source) },
        CommandError::Upstream => {
            let names: BTreeSet<_> = config.routes.0.iter().map(|route| route.upstream.name.as_str()).collect();
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            Problem::new(Code::NotFound, format!("{error}; there are: {names}.")).with_advice(SAYS)
        }
        CommandError::Credential => Problem::new(Code::InvalidRequest, detail).with_advice(SAYS),
    }
}
