//! Which header lines of a request may let their holder in somewhere, and for how long: words that `config`, the parts
//! and the edge share. Known names and the usual endings: a line too many costs a redrive its repeat, a line too few
//! leaks a secret.

use http::{HeaderName, HeaderValue};

/// How long a credential stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is renewed: its holder brings the same with every request.
    Lasting,
    /// Of a session or less, and it may change from one request to the next.
    Session,
    /// It was made for this very request.
    OneRequest,
}

const SIGNATURES: [&str; 6] = ["hmac", "hmac-sha256", "signature", "signature-256", "-sig", "csrf-token"];

const ASSERTIONS: [&str; 4] = ["assertion", "jwt", "oidc-data", "client-principal"];

/// Names in which nothing usual says what they are.
const NAMES: [&str; 9] = [
    "dd-application-key",
    "fastly-key",
    "ocp-apim-subscription-key",
    "x-appwrite-key",
    "x-auth",
    "x-functions-key",
    "x-honeycomb-team",
    "x-jfrog-art-api",
    "x-ms-authorization-auxiliary",
];

const ENDINGS: [&str; 17] = [
    "access-key",
    "api-key",
    "apikey",
    "app-key",
    "auth-key",
    "authentication",
    "authorization",
    "credential",
    "credentials",
    "customer-key",
    "encryption-key",
    "master-key",
    "password",
    "sas-key",
    "secret",
    "secret-key",
    "service-key",
];

/// Tokens that say where in a list a request goes on, or which request it is.
const PLACES: [&str; 5] = ["continuation-token", "idempotency-token", "next-token", "page-token", "sync-token"];

/// Whether a request line may let its holder in somewhere, so that it is never stored, logged or shown.
pub fn is_credential(name: &HeaderName) -> bool {
    lifetime(name).is_some()
}

/// How long the credential in a request line lasts; `None` where there is none in it.
pub fn lifetime(name: &HeaderName) -> Option<Lifetime> {
    let spelled_so = name.as_str();
    // Some services spell it `api_key`.
    let dashed = spelled_so.contains('_').then(|| spelled_so.replace('_', "-"));
    let name = dashed.as_deref().unwrap_or(spelled_so);
    let ends_as = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if name == "dpop" || name == "x-xsrf-token" || ends_as(&SIGNATURES) {
        return Some(Lifetime::OneRequest);
    }
    if is_cookie(name) || ends_as(&ASSERTIONS) {
        return Some(Lifetime::Session);
    }
    let is_token = name.ends_with("token") && !ends_as(&PLACES);
    (is_token || NAMES.contains(&name) || ends_as(&ENDINGS)).then_some(Lifetime::Lasting)
}

/// Whether the line of this name, in small letters, is a browser's, or that of whoever balances the load before a service.
pub fn is_cookie(name: &str) -> bool {
    matches!(name, "cookie" | "cookie2")
}

/// The lines by which one holder of credentials is told from another, by name; those of one name as they came. All lasting
/// ones together, for one of them may be shared by many. What changes by itself makes a new holder of the same one, so it
/// counts only where there is nothing else; `is_known`: there is something else beside the lines.
pub fn holder_lines<'h>(
    lines: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>,
    is_known: bool,
) -> Vec<(&'h str, &'h [u8])> {
    let lines = lines.filter(|(_, value)| !value.is_empty());
    let mut lines: Vec<_> = lines.filter_map(|(name, value)| Some((lifetime(name)?, name, value))).collect();
    let lasts = is_known || lines.iter().any(|(lifetime, ..)| *lifetime == Lifetime::Lasting);
    let counts = if lasts { Lifetime::Lasting } else { Lifetime::Session };
    lines.retain(|(lifetime, ..)| *lifetime == counts);
    lines.sort_by_key(|(_, name, _)| name.as_str());
    lines.into_iter().map(|(_, name, value)| (name.as_str(), value.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes(names: &str) -> Vec<Option<Lifetime>> {
        names.split_whitespace().map(|name| lifetime(&HeaderName::try_from(name).unwrap())).collect()
    }

    #[test]
    fn what_is_renewed_by_hand_lasts() {
        let lasting = "Authorization Proxy-Authorization X-Forwarded-Authorization X-Api-Key Api-Key api_key ApiKey \
            X-Goog-Api-Key X-Auth-Token X-Auth-Key X-Shopify-Access-Token X-Forwarded-Access-Token \
            X-Amzn-Oidc-AccessToken X-Ms-Token-Aad-Id-Token X-Amz-Security-Token X-Vault-Token X-Gitlab-Token \
            Private-Token Job-Token Circle-Token X-Client-Secret Cf-Access-Client-Secret X-Parse-Master-Key \
            Aeg-Sas-Key X-JFrog-Art-Api X-Amz-Server-Side-Encryption-Customer-Key Ocp-Apim-Subscription-Key \
            X-Db-Password";
        assert!(lifetimes(lasting).iter().all(|it| *it == Some(Lifetime::Lasting)), "{:?}", lifetimes(lasting));
    }

    #[test]
    fn what_is_made_for_a_session_or_a_request_is_told_apart() {
        let session = "Cookie Cookie2 X-Goog-Iap-Jwt-Assertion Cf-Access-Jwt-Assertion PayPal-Auth-Assertion \
            X-Amzn-Oidc-Data X-Ms-Client-Principal";
        assert!(lifetimes(session).iter().all(|it| *it == Some(Lifetime::Session)), "{:?}", lifetimes(session));
        let request = "DPoP Signature Stripe-Signature X-Hub-Signature X-Hub-Signature-256 X-Slack-Signature \
            Webhook-Signature X-Shopify-Hmac-Sha256 PayPal-Transmission-Sig X-Csrf-Token X-Xsrf-Token";
        assert!(lifetimes(request).iter().all(|it| *it == Some(Lifetime::OneRequest)), "{:?}", lifetimes(request));
    }

    #[test]
    fn what_lets_nobody_in_is_none() {
        let none = "Content-Type Idempotency-Key X-Session-Id X-Request-Id X-Continuation-Token X-Next-Page-Token \
            Signature-Input Stripe-Account Sec-WebSocket-Key Surrogate-Key";
        assert!(lifetimes(none).iter().all(Option::is_none), "{:?}", lifetimes(none));
    }
}
