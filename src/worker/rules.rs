//! At start: says how many live keys were made under identity rules that have changed since.

use std::sync::Arc;

use crate::engine::Engine;
use crate::operation::Operation;
use crate::store::StoreError;

const PAGE: usize = 500;

/// Compares the rules of every route with those that the store remembers, and remembers the present ones.
pub async fn compare(engine: Arc<Engine>) {
    let mut changed = Vec::new();
    for route in &engine.shared().config.routes.0 {
        let rules: String = route.rules.iter().map(|byte| format!("{byte:02x}")).collect();
        match engine.store().remember(&note(&route.name), &rules, None).await {
            Ok(Some(before)) if before != rules => changed.push((route.name.clone(), before)),
            Ok(_) => {}
            Err(error) => tracing::warn!(route = %route.name, %error, "identity rules not compared"),
        }
    }
    let mut warnings = Vec::new();
    for (route, before) in changed {
        let warning = match made_under_others(engine.as_ref(), &route).await {
            Ok(0) => continue,
            Ok(keys) => format!(
                "route `{route}`: its identity rules have changed; {keys} live keys were made under the old ones"
            ),
            Err(error) => format!("route `{route}`: its identity rules have changed; live keys not counted ({error})"),
        };
        // As long as such keys live, every start says so.
        if let Err(error) = engine.store().remember(&note(&route), &before, None).await {
            tracing::warn!(%route, %error, "identity rules not noted");
        }
        tracing::warn!("{warning}");
        warnings.push(warning);
    }
    engine.shared().status.warn("identity rules", warnings);
}

fn note(route: &str) -> String {
    format!("rules:{route}")
}

async fn made_under_others(engine: &Engine, route: &str) -> Result<usize, StoreError> {
    let rules = engine.shared().config.routes.named(route).map(|route| route.rules);
    let under_others =
        |operation: &Operation| operation.identity.route == route && Some(operation.identity.rules) != rules;
    let (mut count, mut cursor) = (0, None::<String>);
    loop {
        let page = engine.store().list(cursor.as_deref(), PAGE).await?;
        count += page.operations.iter().filter(|operation| under_others(operation)).count();
        cursor = page.next;
        if cursor.is_none() {
            return Ok(count);
        }
    }
}
