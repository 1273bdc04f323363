//! The routes of the statistics in servers of hyper and axum, over sockets, and the collector in a
//! registry of the user's own.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use corewheel::TimerService;
use corewheel_stats::{StatsRoutes, register};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::client::{Reply, ask};
use crate::openmetrics::Scrape;
use crate::{fire, routes, service};

/// A server on a thread of its own, which ends soon after this is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Server {
    fn start<F: Future<Output = ()>>(
        serve: impl FnOnce(TcpListener) -> F + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = serve(TcpListener::from_std(listener).unwrap()) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, _stop: stop }
    }

    /// Serves the statistics besides a page of its own, each connection for one request.
    pub(crate) fn hyper(stats: StatsRoutes) -> Self {
        Self::start(|listener| async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stats = stats.clone();
                let app = service_fn(move |request: Request<Incoming>| {
                    let answer = stats.answer(&request);
                    let is_own = request.uri().path().ends_with("/own");
                    let own = is_own.then(|| Response::new("the server's own".to_owned()));
                    ready(Ok::<_, Infallible>(own.unwrap_or(answer)))
                });
                let mut http = hyper::server::conn::http1::Builder::new();
                let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), app);
                tokio::spawn(async { drop(connection.await) });
            }
        })
    }

    pub(crate) fn axum(stats: StatsRoutes) -> Self {
        let own = || async { "the server's own" };
        let app = axum::Router::new().fallback(own).merge(stats.router());
        Self::start(|listener| async move { axum::serve(listener, app).await.unwrap() })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn get(&self, path: &str, host: &str) -> Reply {
        self.send("GET", path, host)
    }

    fn send(&self, method: &str, path: &str, host: &str) -> Reply {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        ask(self.address, head.as_bytes())
    }
}

fn check_under(server: &Server, prefix: &str) {
    let at = |path: &str| server.get(&format!("{prefix}{path}"), "localhost");
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/stats.json", "application/json"),
        ("/metrics", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("/ready", "text/plain; charset=utf-8"),
        ("/live", "text/plain; charset=utf-8"),
    ] {
        let reply = at(path);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert!(reply.is_complete(), "{path}");
    }
    assert!(at("/metrics").body.contains("\ncorewheel_fired_total{"));
    let page = server.get(if prefix.is_empty() { "/" } else { prefix }, "localhost");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(page.body.contains(&format!("\"{prefix}/stats.json\"")), "the page reads elsewhere");
    let bare = page.body.contains("\"/stats.json\"") || page.body.contains("\"/metrics\"");
    assert_eq!(bare, prefix.is_empty(), "the page names routes of the server");
    let refused = server.send("POST", &format!("{prefix}/stats.json"), "localhost");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    let foreign = server.get(&format!("{prefix}/stats.json"), "elsewhere.example");
    assert_eq!(foreign.status, 421);
}

#[test]
fn routes_answer_in_servers_of_hyper_and_axum_under_any_prefix() {
    let service = service(1);
    fire(&service, 0, 3);
    for (given, prefix) in [("", ""), ("/", ""), ("/timers", "/timers"), ("/a/b-c/", "/a/b-c")] {
        let routes = routes(&service).under(given).unwrap();
        check_under(&Server::hyper(routes.clone()), prefix);
        check_under(&Server::axum(routes), prefix);
    }
}

#[test]
fn paths_besides_the_routes_stay_with_the_server() {
    let service = service(1);
    let routes = routes(&service).under("/timers").unwrap();
    let server = Server::axum(routes.clone());
    for path in ["/", "/stats.json", "/timersx/stats.json", "/own", "/timers/other"] {
        let reply = server.get(path, "elsewhere.example");
        assert_eq!((reply.status, &*reply.body), (200, "the server's own"), "{path}");
    }
    for path in ["/", "/stats.json", "/timersx/stats.json", "/timers/other"] {
        assert_eq!(Server::hyper(routes.clone()).get(path, "localhost").status, 404, "{path}");
    }
}

#[test]
fn hosts_are_those_that_the_routes_were_given() {
    let service = service(1);
    let status = |routes: StatsRoutes, host| {
        let status = Server::hyper(routes.clone()).get("/ready", host).status;
        assert_eq!(Server::axum(routes).get("/ready", host).status, status, "{host}");
        status
    };
    let named = routes(&service).allow_host("www.example").unwrap();
    assert_eq!(status(routes(&service), "www.example"), 421);
    assert_eq!(status(named.clone(), "www.example:80"), 200);
    assert_eq!(status(named, "other.example"), 421);
}

#[test]
fn request_of_http_2_names_its_host_in_the_target() {
    let service = service(1);
    let routes = routes(&service);
    let status = |uri: &str| {
        let request = Request::get(uri).version(hyper::Version::HTTP_2);
        routes.answer(&request.body(String::new()).unwrap()).status().as_u16()
    };
    assert_eq!(status("http://localhost/ready"), 200);
    assert_eq!(status("http://elsewhere.example/ready"), 421);
    assert_eq!(status("/ready"), 400);
}

#[test]
fn malformed_prefixes_are_refused_with_what_to_write() {
    let service = service(1);
    let long = format!("/{}", "a".repeat(256));
    for prefix in ["timers", "/a//b", "//", "/a\"b", "/a b", "/{a}", "/<a>", &long] {
        let error = routes(&service).under(prefix).unwrap_err().to_string();
        assert!(error.contains("under") && error.contains("/internal/timers"), "{error}");
    }
}

fn named(name: &str) -> TimerService {
    TimerService::builder().shards(2).name(name).start_attached().unwrap()
}

fn unnamed() -> TimerService {
    TimerService::builder().shards(2).start_attached().unwrap()
}

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[test]
fn collector_of_several_services_writes_each_family_once() {
    let (one, two) = (named("one"), named("two"));
    let labels = [("region".into(), "north".into())];
    let mut registry = Registry::with_prefix_and_labels("app", labels.into_iter());
    let [one, two] = [&one, &two].map(TimerService::stats_source);
    register(&mut registry, move || vec![one(), two()]).unwrap();
    // The reader panics if a family or a sample comes twice.
    let scrape = Scrape::read(&encoded(&registry));
    for service in ["one", "two"] {
        let labels = [("region", "north"), ("service", service), ("shard", "1")];
        scrape.check("app_corewheel_fired", "_total", &labels, 0.0);
        assert!(scrape.value("app_corewheel_cores", "", &labels[..2]) > 0.5);
    }
}

#[test]
fn collector_refuses_two_services_of_one_name_and_says_how_to_name_them() {
    let check = |name: &str, services: &[&TimerService]| {
        let sources: Vec<_> = services.iter().map(|service| service.stats_source()).collect();
        let read = move || sources.iter().map(|read| read()).collect();
        let registered = register(&mut Registry::default(), read);
        let refused = registered.expect_err("each sample would come twice");
        assert_eq!(refused.field(), "name");
        let text = refused.to_string();
        assert!(text.starts_with(&format!("name is {name:?}, but ")), "{text}");
        assert!(text.ends_with("with `TimerServiceBuilder::name`"), "{text}");
    };
    check("corewheel", &[&unnamed(), &unnamed()]);
    check("jobs", &[&named("jobs"), &named("jobs")]);
    check("jobs", &[&named("jobs"), &unnamed(), &named("jobs")]);
    check("corewheel", &[&unnamed(), &named("corewheel")]);
    let service = named("one");
    check("one", &[&service, &service]);
    // A service that has ended has its samples, too.
    let ended = named("one");
    drop(ended.shutdown(corewheel::ShutdownPolicy::Drop));
    check("one", &[&service, &ended]);
}

#[test]
fn collectors_in_registries_of_different_prefixes_are_both_registered() {
    let mut registry = Registry::default();
    for prefix in ["north", "south"] {
        let part = registry.sub_registry_with_prefix(prefix);
        let source = unnamed().stats_source();
        register(part, move || vec![source()]).unwrap();
    }
    let scrape = Scrape::read(&encoded(&registry));
    let of_first = [("service", "corewheel"), ("shard", "0")];
    for family in ["north_corewheel_fired", "south_corewheel_fired"] {
        scrape.check(family, "_total", &of_first, 0.0);
    }
}
