//! The answers to requests: a fixed set of routes, and an error for every other request.
//!
//! A request is judged by its head alone, and its body is never read: a function from the head to
//! the answer, without waiting, needs no deadline of its own.
//!
//! Order of judgement: the body, the method, the host, the path.

use std::fmt::Write as _;
use std::sync::Arc;

use corewheel::stats::{ClassStats, ServiceStats, ShardState, ShardStats, WarningKind};
use hyper::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::collector::Collected;
use super::host::HostError;
use super::mount::StatsRoutes;
use super::reasons::{Reason, present};

/// The longest body that is overlooked.
const BODY_MAX: u64 = 1 << 10;

const PAGE: &str = include_str!("page.html");

/// The page may run its own script and ask its own server, and nothing else. It puts what it is
/// told into the document as text only, never as markup.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; \
                           style-src 'unsafe-inline'; img-src data:; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The paths of the routes.
pub(super) const PATHS: [&str; 5] = ["/", "/stats.json", "/metrics", "/ready", "/live"];

const NOT_FOUND: &str = "there are /, /stats.json, /metrics, /ready and /live";

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a shard does whose connections are told to end.
const DRAINING: &str = "draining";

const FOREIGN_HOST: &str = "this endpoint does not answer for the host that was named; name it by \
                            localhost or by an IP address, or allow the name with \
                            `StatsRoutes::allow_host`";

type Answer = Response<String>;

/// What `/stats.json` has.
#[derive(Serialize)]
struct Served<'a> {
    #[serde(flatten)]
    stats: &'a ServiceStats,
    warning_kinds: [WarningRow; WarningKind::ALL.len()],
    /// The counts of each class on all shards together.
    classes: Vec<ClassStats>,
}

#[derive(Serialize)]
struct WarningRow {
    id: &'static str,
    part: Option<&'static str>,
    remedy: &'static str,
}

impl StatsRoutes {
    /// The path of a request below the prefix; `None` if the request is for another path.
    pub(super) fn path<'a>(&self, path: &'a str) -> Option<&'a str> {
        match path.strip_prefix(self.prefix.as_str())? {
            "" => Some("/"),
            path => path.starts_with('/').then_some(path),
        }
    }

    /// The answer to a request, by its head alone; 404 for a path that is no route. To `HEAD` it is
    /// that to `GET`, of which the server sends the head only.
    pub fn answer(&self, request: &Request<impl Body>) -> Response<String> {
        if request.headers().contains_key(header::TRANSFER_ENCODING) {
            // It has no end that is known beforehand, and may contradict a length that is stated.
            return refuse(StatusCode::BAD_REQUEST, "a body must state its length");
        }
        if request.body().size_hint().lower() > BODY_MAX {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "no request here needs a body");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match self.hosts.check(request) {
            Ok(()) => {}
            Err(HostError::Malformed(hint)) => return refuse(StatusCode::BAD_REQUEST, hint),
            Err(HostError::Foreign) => {
                return refuse(StatusCode::MISDIRECTED_REQUEST, FOREIGN_HOST);
            }
        }
        match self.path(request.uri().path()) {
            Some("/") => self.page(),
            Some("/stats.json") => self.json(),
            Some("/metrics") => self.metrics(),
            Some("/ready") => ready(&(self.source)(), &self.reasons),
            Some("/live") => answer(StatusCode::OK, TEXT, "the process answers\n"),
            _ => refuse(StatusCode::NOT_FOUND, NOT_FOUND),
        }
    }

    fn page(&self) -> Answer {
        let named = |page: String, path: &&str| {
            page.replace(&format!("\"{path}\""), &format!("\"{}{path}\"", self.prefix))
        };
        let paths = PATHS.iter().filter(|path| **path != "/" && !self.prefix.is_empty());
        let mut page = answer(StatusCode::OK, HTML, paths.fold(page_with_guide(), named));
        let policy = HeaderValue::from_static(PAGE_POLICY);
        page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        page
    }

    fn json(&self) -> Answer {
        let stats = (self.source)();
        let warning_kinds = WarningKind::ALL.map(|kind| WarningRow {
            id: kind.id(),
            part: kind.part(),
            remedy: kind.remedy(),
        });
        let served = Served { stats: &stats, warning_kinds, classes: stats.classes() };
        match serde_json::to_string(&served) {
            Ok(json) => answer(StatusCode::OK, JSON, json),
            Err(error) => failed(&error),
        }
    }

    fn metrics(&self) -> Answer {
        let mut registry = Registry::default();
        let source = Arc::clone(&self.source);
        Collected(move || vec![source()]).register(&mut registry);
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &registry) {
            return failed(&error);
        }
        answer(StatusCode::OK, OPEN_METRICS, text)
    }
}

/// The page, with what the guide says about each warning.
fn page_with_guide() -> String {
    let mut sections = String::new();
    for kind in WarningKind::ALL {
        let (id, text) = (kind.id(), kind.guide());
        let _ = write!(sections, "<article><h3 id=\"guide-{id}\">{id}</h3>");
        for paragraph in text.split("\n\n").map(plain).filter(|text| !text.is_empty()) {
            let _ = write!(sections, "<p>{paragraph}</p>");
        }
        sections.push_str("</article>\n");
    }
    PAGE.replace("<!--guide-->", &sections)
}

/// A paragraph of the guide as HTML, without its marks and links.
fn plain(paragraph: &str) -> String {
    let mut text = String::new();
    let mut rest = paragraph.trim();
    // `[name](target)` becomes the name.
    while let Some((before, (name, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (name, target) = link.split_once("](")?;
        Some((before, (name, target.split_once(')')?.1)))
    }) {
        text.push_str(before);
        text.push_str(name);
        rest = after;
    }
    text.push_str(rest);
    let text = text.replace("**", "").replace('`', "").replace('&', "&amp;");
    text.replace('<', "&lt;").replace('\n', " ")
}

/// Why a shard does not run; `None` if it does.
fn trouble(shard: &ShardStats) -> Option<&'static str> {
    match shard.state {
        ShardState::Running => None,
        ShardState::Waiting => Some("not attached yet"),
        ShardState::Closed => Some("closed"),
        ShardState::Dead => Some("dead"),
        _ => Some("in a state of which this endpoint does not know"),
    }
}

/// Whether the server is to get connections. Each line is a sentence.
fn ready(stats: &ServiceStats, reasons: &[Reason]) -> Answer {
    let lines: Vec<String> = not_ready(stats).into_iter().chain(present(reasons)).collect();
    if lines.is_empty() {
        return answer(StatusCode::OK, TEXT, "every shard runs\n");
    }
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, lines.join("\n") + "\n")
}

/// Why the shards are not ready; `None` if every shard runs, and none is stuck or drains.
fn not_ready(stats: &ServiceStats) -> Option<String> {
    let stuck_after = stats.warning_limits.stuck;
    let complain = |shard: &ShardStats| {
        let stuck_for = shard.stuck_for();
        let trouble = match trouble(shard) {
            Some(trouble) => trouble.to_owned(),
            None if stuck_for > stuck_after => format!("stuck for {stuck_for:.1?}"),
            None if shard.is_draining => DRAINING.to_owned(),
            None => return None,
        };
        Some((shard.shard, trouble))
    };
    let troubles: Vec<_> = stats.shards.iter().filter_map(complain).collect();
    let drains = troubles.iter().filter(|(_, trouble)| trouble == DRAINING).count();
    if drains > 0 && drains == stats.shards.len() {
        return Some(DRAINING.to_owned());
    }
    let (shard, trouble) = troubles.first()?;
    let others = match troubles.len() - 1 {
        0 => String::new(),
        1 => ", and another shard is not ready either".to_owned(),
        others => format!(", and {others} other shards are not ready either"),
    };
    Some(format!("{shard:?} is {trouble}{others}"))
}

fn refuse(status: StatusCode, hint: &str) -> Answer {
    answer(status, TEXT, format!("{status}: {hint}\n"))
}

fn failed(error: &dyn std::error::Error) -> Answer {
    tracing::error!(
        name: "statistics-not-written",
        target: "corewheel::endpoint",
        %error, "the statistics cannot be written"
    );
    refuse(StatusCode::INTERNAL_SERVER_ERROR, "the statistics cannot be written")
}

fn answer(status: StatusCode, kind: &'static str, content: impl Into<String>) -> Answer {
    let mut answer = Response::new(content.into());
    *answer.status_mut() = status;
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
