//! Follows the files of the gateway's certificate: whoever renews it only has to write them.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::{CertificateError, ServerTls};
use crate::engine::status::Status;

/// How often the files are looked at. They are read and compared: times of change are not enough where a whole
/// directory is swapped by a link, as Kubernetes does it.
const EVERY: Duration = Duration::from_secs(2);

/// Until `stop`, gives new connections what the files say. What cannot be used changes nothing and is told: to the log
/// once, and in `status` as long as it lasts.
pub async fn follow(
    mut used: ServerTls,
    current: watch::Sender<Arc<ServerConfig>>,
    status: Arc<Status>,
    stop: CancellationToken,
) {
    let mut told = None;
    while stop.run_until_cancelled(sleep(EVERY)).await.is_some() {
        let fault = match look(used.clone()).await {
            Ok(None) => None,
            Ok(Some(renewed)) => {
                tracing::info!("the certificate files have changed; new connections get what they say now");
                current.send_replace(Arc::clone(&renewed.config));
                used = renewed;
                None
            }
            Err(error) => Some(format!("server.tls: the previous certificates stay in use: {error}")),
        };
        if fault != told {
            fault.iter().for_each(|fault| tracing::warn!("{fault}"));
            status.warn("certificates", fault.iter().cloned().collect());
            told = fault;
        }
    }
}

/// On another thread, for the files may be on a disk that is far away.
async fn look(used: ServerTls) -> Result<Option<ServerTls>, CertificateError> {
    tokio::task::spawn_blocking(move || used.reload()).await.unwrap_or(Ok(None))
}
