//! The pages behind the `type` of a problem: what it means and what to do, for whoever follows the link.

use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, Method, Response, StatusCode};

use crate::engine::answer::Marks;
use crate::engine::problem::{Code, Entry, Problem};
use crate::server::body::ResponseBody;
use crate::server::respond;

const ADDRESS: &str = "/.oncegate/problems/";

/// Nothing may be loaded or run: the pages are text.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const STYLE: &str = "body{font:1rem/1.6 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}\
    code{font-size:1.1em}dt{font-weight:600;margin-top:1rem}dd{margin:0}";

/// Answers a request for a page; `None` if the path is not one of theirs.
pub fn answer(method: &Method, path: &str) -> Option<Response<ResponseBody>> {
    let name = path.strip_prefix(ADDRESS)?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(respond::wrong_method("GET, HEAD"));
    }
    if name.is_empty() {
        return Some(html(index()));
    }
    Some(match Code::parse(name) {
        Some(code) => html(page(code.entry())),
        None => {
            let told =
                Problem::new(Code::NotFound, "There is no problem type of this name; /.oncegate/problems/ has all.");
            respond::problem(told, &Marks::default())
        }
    })
}

fn html(text: String) -> Response<ResponseBody> {
    let mut response = respond::document(StatusCode::OK, "text/html; charset=utf-8", text.into_bytes());
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

fn index() -> String {
    let items: String = Code::ALL.into_iter().map(|code| item(code.entry())).collect();
    frame("Problems", &format!("<p>What the gateway itself may answer, and what to do about it.</p><ul>{items}</ul>"))
}

fn item(entry: &Entry) -> String {
    let Entry { code, status, title, .. } = entry;
    format!("<li><a href=\"{ADDRESS}{code}\"><code>{code}</code></a> ({status}): {title}</li>")
}

fn page(entry: &Entry) -> String {
    let again = if entry.retryable { "yes" } else { "no" };
    let also = if entry.also.is_empty() { String::new() } else { format!("; {}", entry.also) };
    let body = format!(
        "<dl><dt>Code</dt><dd><code>{}</code></dd><dt>Status</dt><dd>{}{also}</dd>\
         <dt>What happened</dt><dd>{}</dd><dt>What to do</dt><dd>{}</dd>\
         <dt>Is it for a client to repeat the same request by itself?</dt><dd>{again}</dd></dl>\
         <p><a href=\"{ADDRESS}\">All problems</a></p>",
        entry.code, entry.status, entry.explanation, entry.advice,
    );
    frame(entry.title, &body)
}

fn frame(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title} - oncegate</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn text(response: Response<ResponseBody>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn every_problem_type_has_a_page_and_the_index_leads_to_it() {
        let index = text(answer(&Method::GET, "/.oncegate/problems/").unwrap()).await;
        for code in Code::ALL {
            let entry = code.entry();
            let address = format!("/.oncegate/problems/{}", entry.code);
            let response = answer(&Method::GET, &address).unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let page = text(response).await;
            assert!(page.contains(entry.explanation) && page.contains(entry.advice), "{}", entry.code);
            assert!(index.contains(&format!("href=\"{address}\"")), "{}", entry.code);
        }
    }

    #[test]
    fn the_texts_need_no_escaping() {
        for code in Code::ALL {
            let Entry { title, advice, explanation, .. } = code.entry();
            assert!([title, advice, explanation].iter().all(|text| !text.contains(['<', '>', '&'])), "{code:?}");
        }
    }

    #[test]
    fn pages_run_nothing() {
        let response = answer(&Method::GET, "/.oncegate/problems/").unwrap();
        assert!(response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    }

    #[test]
    fn other_paths_names_and_methods_are_told_apart() {
        assert!(answer(&Method::GET, "/payments").is_none());
        assert_eq!(answer(&Method::GET, "/.oncegate/problems/nothing").unwrap().status(), 404);
        let response = answer(&Method::POST, "/.oncegate/problems/").unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["allow"].to_str().unwrap()), (405, "GET, HEAD"));
    }
}
