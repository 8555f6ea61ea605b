//! The texts of the problem types, one entry each. Every advice says what to do next, in a sentence that a model can
//! act on; every explanation says what happened, what did not, and what the operator can change.

use super::Entry;

pub(super) const KEY_MISSING: Entry = Entry {
    code: "key-missing",
    status: 400,
    also: "",
    title: "This call needs an idempotency key",
    advice: "Send the same call again with a header Idempotency-Key: a value that is new for this intent and stays the \
             same on every retry of it.",
    explanation: "The route asks for a key on every write (mode = \"required\"), and the call brought neither a key nor \
                  the session and step headers from which one is made. Nothing was sent. An operator who would rather \
                  have keys made up for such calls sets mode = \"stamp\".",
    retryable: false,
    look_up: false,
};

pub(super) const KEY_INVALID: Entry = Entry {
    code: "key-invalid",
    status: 400,
    also: "",
    title: "The idempotency key is malformed",
    advice: "Send the call again with exactly one Idempotency-Key header of 1 to 255 visible ASCII characters.",
    explanation: "A key is one header line without list or parameters: 1 to 255 visible ASCII characters, with or \
                  without double quotes around it. Nothing was sent and nothing was stored.",
    retryable: false,
    look_up: false,
};

pub(super) const INVALID_REQUEST: Entry = Entry {
    code: "invalid-request",
    status: 400,
    also: "403, 408, 414, 417, 421, 431, 501 or 508 where HTTP has its own",
    title: "The request is not valid",
    advice: "Correct the request as the detail says; sent again as it is, it will be refused again.",
    explanation: "The request breaks HTTP, or can be read in more than one way: its framing, its target, its Host or one \
                  of its headers. The gateway refuses such requests before it looks at any route, because the next hop \
                  might read them differently. With 403 it is well formed, but a page of another site made a browser on \
                  the gateway's machine send it. Nothing was sent, and the connection ends.",
    retryable: false,
    look_up: false,
};

pub(super) const UNAUTHENTICATED: Entry = Entry {
    code: "unauthenticated",
    status: 401,
    also: "",
    title: "The gateway does not know this caller",
    advice: "Send the gateway's own token as Authorization: Bearer TOKEN, or ask the operator for one.",
    explanation: "This gateway tells its callers apart by tokens of its own ([callers] scope = \"token\"). The token is \
                  checked here and never goes to a service. Nothing was sent.",
    retryable: false,
    look_up: false,
};

pub(super) const REJECTED: Entry = Entry {
    code: "rejected",
    status: 403,
    also: "",
    title: "A person said no to this call",
    advice: "Do not repeat this call; tell the person you work for that it was rejected.",
    explanation: "The call waited for an approval, and an operator rejected it or the approval ran out. It never ran. \
                  There are no approvals in this version.",
    retryable: false,
    look_up: true,
};

pub(super) const NO_ROUTE: Entry = Entry {
    code: "no-route",
    status: 404,
    also: "",
    title: "No route matches this request",
    advice: "Check the method and the path; this answer comes from the gateway, not from the service behind it.",
    explanation: "No [[routes]] entry of gateway.toml fits the request. The command `oncegate explain METHOD PATH` says \
                  which entry a request meets. Nothing was sent.",
    retryable: false,
    look_up: false,
};

pub(super) const NOT_FOUND: Entry = Entry {
    code: "not-found",
    status: 404,
    also: "",
    title: "There is nothing under this name",
    advice: "Check the name; an operation is shown only to the credential that made the call.",
    explanation: "The gateway has no such operation or page for this caller. An operation of another caller is not found \
                  either, and one whose record has run out is gone.",
    retryable: false,
    look_up: false,
};

pub(super) const METHOD_NOT_ALLOWED: Entry = Entry {
    code: "method-not-allowed",
    status: 405,
    also: "",
    title: "The gateway does not take this method here",
    advice: "Set the client's base URL to the gateway's address instead of using it as a forward proxy.",
    explanation: "oncegate is a reverse proxy: a client reaches its services through a base URL such as \
                  http://127.0.0.1:8080, not through a proxy setting (HTTP_PROXY, --proxy). CONNECT and TRACE are \
                  refused everywhere, and the gateway's own addresses take only the methods named in Allow.",
    retryable: false,
    look_up: false,
};

pub(super) const IN_PROGRESS: Entry = Entry {
    code: "in-progress",
    status: 409,
    also: "",
    title: "The same call is still running",
    advice: "Wait as Retry-After says, then send the same call with the same key again; it will not run twice.",
    explanation: "Another request with this key is at work. Its answer is replayed to every repeat. A caller that would \
                  rather wait on the connection needs in_flight = \"wait\" on the route, and a timeout that is longer.",
    retryable: true,
    look_up: true,
};

pub(super) const AWAITING_APPROVAL: Entry = Entry {
    code: "awaiting-approval",
    status: 409,
    also: "",
    title: "The call waits for a person",
    advice: "Do not repeat this call now: it runs by itself as soon as a person approves it.",
    explanation: "The route has an approval, and the call is parked until an operator approves or rejects it. The same \
                  call with the same key finds out how that ended. There are no approvals in this version.",
    retryable: false,
    look_up: true,
};

pub(super) const OUTCOME_UNKNOWN: Entry = Entry {
    code: "outcome-unknown",
    status: 409,
    also: "at first 502 or 504",
    title: "Nobody can say whether the call ran",
    advice: "Do not repeat this call with a new key, because it may already have run; with its own key it never runs \
             twice. Check with the service itself what became of it, or ask a person.",
    explanation: "Bytes of the call went to the service and no final answer came back. It may or may not have run there, \
                  and time does not tell. Where a second send could run it twice (repeat = \"unsafe\"), none is made, \
                  and only the late answer of the very same attempt ends this state, or a person. Whoever sees at the \
                  service that it did not run sends the call with a new key; whoever sees that it ran takes the result \
                  from there. The record counts against store.max_open until an operator gives it up: \
                  POST /v1/operations/NAME/abandon on the admin listener. Where the service honours idempotency keys \
                  (\"with-key\") or may get the call twice (\"harmless\"), the same call with the same key is sent again and finds \
                  out, and the problem says so: retryable is true then. A route may be said to be that later on, and its \
                  calls keep their keys. A call without a key of its own has the one that its answer tells \
                  (Idempotency-Key).",
    retryable: false,
    look_up: true,
};

pub(super) const RESULT_EXPIRED: Entry = Entry {
    code: "result-expired",
    status: 409,
    also: "",
    title: "The call ran, and its answer is no longer kept",
    advice: "Do not repeat this call, because it already ran; read the result from the service itself.",
    explanation: "The receipt has run out (receipts in gateway.toml), while the tombstone (tombstones) still says that \
                  this key was used. Nothing was sent.",
    retryable: false,
    look_up: true,
};

pub(super) const RESULT_UNAVAILABLE: Entry = Entry {
    code: "result-unavailable",
    status: 409,
    also: "at first 502 where an answer was cut",
    title: "The answer of this call is not here",
    advice: "Do not repeat this call, because it ran or may have run; read the result from the service itself.",
    explanation: "The service's answer was cut short, was longer than max_receipt of the route, or found no room beside \
                  those that are under way (server.buffers), or what is stored of the call is damaged. Where its record can \
                  be read, its status, length and digest are here. Nothing was sent now.",
    retryable: false,
    look_up: true,
};

pub(super) const ABANDONED: Entry = Entry {
    code: "abandoned",
    status: 409,
    also: "",
    title: "A person gave this call up",
    advice: "Do not repeat this call; ask the operator what became of it.",
    explanation: "An operator gave this operation up (POST /v1/operations/NAME/abandon on the admin listener), so its \
                  key is never sent again, for as long as its tombstone is kept. Nothing was sent.",
    retryable: false,
    look_up: true,
};

pub(super) const CONFLICT: Entry = Entry {
    code: "conflict",
    status: 409,
    also: "",
    title: "Not possible in this state",
    advice: "Go by the detail; GET /v1/status and GET /v1/operations/NAME show how things stand.",
    explanation: "An operator asked for something that the present state does not allow, such as a redrive of a call that \
                  may have run, or the acceptance of a loss by a store that has lost nothing. Nothing was changed.",
    retryable: false,
    look_up: false,
};

pub(super) const BODY_TOO_LARGE: Entry = Entry {
    code: "body-too-large",
    status: 413,
    also: "",
    title: "The request body is too large",
    advice: "Send a smaller body, or ask the operator to raise max_body of this route.",
    explanation: "A guarded body is buffered whole before anything is claimed, within max_body of its route. Nothing was \
                  sent. on_large_body = \"pass-unguarded\" lets such calls through without protection.",
    retryable: false,
    look_up: false,
};

pub(super) const KEY_REUSED: Entry = Entry {
    code: "key-reused",
    status: 422,
    also: "",
    title: "The key was used for another request",
    advice: "Use a new key if this is a new intent; to repeat the earlier call, send exactly the same request again.",
    explanation: "Method, target, chosen headers, media type or body differ from the request that first came with this \
                  key. Members that may differ between retries belong into ignore of the route, from the beginning: a change of \
                  it gives derived keys another value. Nothing was sent.",
    retryable: false,
    look_up: false,
};

pub(super) const PAYLOAD_CHANGED: Entry = Entry {
    code: "payload-changed",
    status: 422,
    also: "",
    title: "The same step was already called with another payload",
    advice: "If this is a new call, give it a step of its own in X-Step-Index; if it is a retry, send the first payload \
             again.",
    explanation: "Session and step name one call, and that call came with another payload before. Running the changed one \
                  could do the step twice, so it is not run (on_changed_payload). Nothing was sent.",
    retryable: false,
    look_up: true,
};

pub(super) const RATE_LIMITED: Entry = Entry {
    code: "rate-limited",
    status: 429,
    also: "",
    title: "Too many calls",
    advice: "Wait as Retry-After says, then send the same call again.",
    explanation: "The route's own limit (routes.limit) is used up, the service asked for less traffic, an operator \
                  paused it, or the caller has as many unfinished operations as store.max_open allows: running, waiting, \
                  or unknown. Unknown ones free no place by themselves: GET /v1/operations?state=unknown on the admin \
                  listener lists them, POST /v1/operations/NAME/abandon gives one up. Repeats that need no send, of a call that is \
                  running or has a receipt, are answered all the same. Nothing was sent and nothing was stored.",
    retryable: true,
    look_up: false,
};

pub(super) const UPSTREAM_FAILED: Entry = Entry {
    code: "upstream-failed",
    status: 502,
    also: "",
    title: "The service did not take the call",
    advice: "Make the call again later, with the same key, if it is still wanted; it did not run.",
    explanation: "The gateway found no connection to the service, or the service turned the call down: with 429 or 401, \
                  say, or an answer of which a rule of the route says so. The detail says which, and the gateway's own \
                  tries are used up. Nothing ran there, unless it was a read, which may have come as far. Where there was \
                  no connection, check the upstream's url and whether the service is up.",
    retryable: false,
    look_up: true,
};

pub(super) const STORE_UNAVAILABLE: Entry = Entry {
    code: "store-unavailable",
    status: 503,
    also: "",
    title: "The gateway cannot reach its store",
    advice: "Wait as Retry-After says and send the same call with the same key again; this request was not sent.",
    explanation: "Without the store nobody can tell whether the call ran before, so guarded calls are refused until it is \
                  back. What is said here is said of this request: an earlier one with the same key may have run. /readyz?store=1 on the health port says how it is. A store that answers, but has lost what it \
                  acknowledged (a flush, an older copy, another database), is refused as well, until an operator accepts \
                  the loss: POST /v1/store/accept-loss on the admin listener.",
    retryable: true,
    look_up: false,
};

pub(super) const RECORD_TOO_NEW: Entry = Entry {
    code: "record-too-new",
    status: 503,
    also: "",
    title: "The record was written by a newer gateway",
    advice: "Wait as Retry-After says and send the same call again; nothing was sent.",
    explanation: "During an upgrade a record may be in a format that this version does not know. It is never claimed; a \
                  gateway of the newer version can answer. Finish the upgrade.",
    retryable: true,
    look_up: false,
};

pub(super) const OVERLOADED: Entry = Entry {
    code: "overloaded",
    status: 503,
    also: "",
    title: "The gateway is at its limit",
    advice: "Wait as Retry-After says and send the same call again; nothing was sent.",
    explanation: "The bodies that the gateway holds in memory are at their limit (server.buffers), or the route has as \
                  many calls under way as it may (limit.concurrency, and limit.queue in line). Nothing was sent and \
                  nothing was stored now; a receipt that found no room to be told is still there.",
    retryable: true,
    look_up: false,
};

pub(super) const BREAKER_OPEN: Entry = Entry {
    code: "breaker-open",
    status: 503,
    also: "",
    title: "The service fails, and is left alone for a while",
    advice: "Wait as Retry-After says and send the same call again; nothing was sent.",
    explanation: "The service failed several times in a row (or too often, with failure_percent), so the gateway sends it \
                  nothing until open_for of [routes.breaker] is over. Then one call at a time, of those that come to no \
                  harm if they run twice, finds out whether it is well again. Others wait for that, or for one minute \
                  more and find out themselves; not where the service could not be reached at all, for then any call \
                  finds out at once. Retry-After is how long that is. Nothing was sent and nothing was stored.",
    retryable: true,
    look_up: false,
};

pub(super) const UPSTREAM_TIMEOUT: Entry = Entry {
    code: "upstream-timeout",
    status: 504,
    also: "",
    title: "The service did not answer in time",
    advice: "Make the call again later, with the same key, if it is still wanted; with its key it does not run twice.",
    explanation: "No answer came within attempt_timeout or the deadline of the route (routes.retry), and the call is one \
                  that may be sent again. The gateway's own tries are used up.",
    retryable: false,
    look_up: true,
};
