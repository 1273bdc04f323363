//! How an endpoint starts, which settings it accepts, and how it stops.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use corewheel::TimerService;
use corewheel_stats::{EndpointError, StatsEndpoint, StatsEndpointBuilder};

use crate::client::get;
use crate::{builder, endpoint, fire, service};

#[test]
fn endpoint_listens_on_loopback_unless_another_address_is_set() {
    let service = service(1);
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 9920));
    match StatsEndpoint::builder(service.stats_source()).start() {
        Ok(endpoint) => assert_eq!(endpoint.local_addr(), default),
        // Another process on this machine has the port.
        Err(EndpointError::AddressInUse(address)) => assert_eq!(address, default),
        Err(error) => panic!("{error}"),
    }
    let endpoint = builder(&service).listen((Ipv4Addr::UNSPECIFIED, 0)).start().unwrap();
    assert!(endpoint.local_addr().ip().is_unspecified());
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, endpoint.local_addr().port()));
    assert_eq!(get(here, "/healthz").status, 200);
}

#[test]
fn start_on_a_port_in_use_returns_a_typed_error_and_timers_still_fire() {
    let service = service(1);
    let first = endpoint(&service);
    let taken = first.local_addr();
    let error = builder(&service).listen(taken).start().expect_err("the port is taken");
    assert!(matches!(error, EndpointError::AddressInUse(address) if address == taken), "{error:?}");
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    fire(&service, 0, 10);
    assert_eq!(get(taken, "/healthz").status, 200);
}

#[test]
fn start_with_several_addresses_binds_the_first_free_one() {
    let service = service(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let holder = endpoint(&service);
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let addresses = [holder.local_addr(), free];
    let endpoint = builder(&service).listen(&addresses[..]).start().unwrap();
    assert_ne!(endpoint.local_addr(), holder.local_addr());
    assert_eq!(endpoint.local_addr().ip(), taken.ip());
}

#[test]
fn start_on_an_address_of_another_machine_returns_a_bind_error() {
    let service = service(1);
    let error = builder(&service).listen("192.0.2.1:9920").start().unwrap_err();
    assert!(matches!(error, EndpointError::Bind { .. }), "{error:?}");
    assert!(error.to_string().contains("192.0.2.1:9920"), "{error}");
}

fn check_setting(
    change: impl FnOnce(StatsEndpointBuilder) -> StatsEndpointBuilder,
    expected: &str,
) {
    let service: TimerService = TimerService::builder().shards(1).start_attached().unwrap();
    let error = change(builder(&service)).start().expect_err("the setting is refused");
    let EndpointError::Config(error) = error else { panic!("{error:?}") };
    assert_eq!(error.field(), expected, "{error}");
}

#[test]
fn setting_out_of_range_is_refused_with_its_name() {
    check_setting(|b| b.listen("no port"), "listen");
    check_setting(|b| b.listen(&[][..]), "listen");
}

#[test]
fn endpoint_shows_the_last_counts_after_the_service_is_dropped() {
    let service = service(1);
    let endpoint = endpoint(&service);
    fire(&service, 0, 3);
    drop(service);
    let reply = get(endpoint.local_addr(), "/stats.json");
    let stats: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(stats["shards"][0]["fired"], 3);
    assert_eq!(stats["shards"][0]["state"], "closed");
}

#[test]
fn stop_frees_the_port_for_another_endpoint() {
    let service = service(1);
    // Another process may take the port between stop and start, though not in each of 20 rounds.
    let again = (0..20).any(|_| {
        let endpoint = endpoint(&service);
        let address = endpoint.local_addr();
        assert_eq!(get(address, "/healthz").status, 200);
        endpoint.stop();
        let again = builder(&service).listen(address).start();
        again.is_ok_and(|endpoint| get(endpoint.local_addr(), "/healthz").status == 200)
    });
    assert!(again, "the port is never free after a stop");
}

#[test]
fn endpoint_starts_and_stops_inside_a_tokio_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = service(1);
        let endpoint = endpoint(&service);
        assert_eq!(get(endpoint.local_addr(), "/healthz").status, 200);
    });
}
